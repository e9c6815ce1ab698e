"""Commands that the demo submits: small real documents of several tenants, in both modes, and a contract as PDF."""

from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct

TENANTS = ("acme", "globex", "initech")
REVIEW_TENANT = "umbrella"
CONTRACT_TENANT = "halden"
PROMPTS = ["What must the supplier deliver, and when?", "Who pays, and how much?", "What if it is late?"]

_KINDS = ("contract", "invoice", "claim", "tender")
_GOODS = ("four hydraulic presses", "nine hundred desk lamps", "the annual audit", "two tonnes of copper wire")
_TERMS = ("within thirty days", "before the end of the quarter", "on the first Monday of March", "without delay")
_PLACES = ("Hamburg", "Lyon", "Gdansk", "Porto", "Turin")


class Question(Struct, frozen=True):
    """A question about the contract, and a part of the right answer."""

    prompt: str
    contains: str
    scanned: bool = False
    """True if the answer is on a page that is an image: it takes an OCR engine to read it."""


QUESTIONS = [
    Question("What does one pump cost?", "1,240 euros"),
    Question("When does this agreement enter into force?", "1 March 2026"),
    Question("Within how many days are invoices payable?", "forty-five days"),
    Question("What penalty does the Supplier pay for late delivery?", "0.5 percent"),
    Question("Who inspected the pumps?", "Ingrid Solberg", scanned=True),
]


class Document(Struct, frozen=True):
    """A document to be processed, and its command."""

    tenant: str
    name: str
    command: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{self.tenant}'s {self.name}"


def blob_path(folder: Path, ref: str) -> Path:
    """Return the file behind a `blob:` ref in the blob folder."""
    return folder / unquote(ref.removeprefix("blob://"))


def documents(folder: Path, count: int, rng: Random) -> list[Document]:
    """Write `count` documents into the blob folder, and return what to do with each."""
    return [contract(folder), *(_document(folder, number, rng) for number in range(1, count))]


def contract(folder: Path) -> Document:
    """Return the contract: four pages, one of them a scan."""
    source = folder / "in" / CONTRACT_TENANT / "contract.pdf"
    data = (files("lucius.reference_services") / "sample" / "contract.pdf").read_bytes()
    payload = {"sis": {"prompt_set": [question.prompt for question in QUESTIONS], "max_sentences": 1}}
    return Document(
        CONTRACT_TENANT, "contract.pdf", _command(source, "contract.pdf", "OCR_EMBEDDING_SIS", payload, data)
    )


def _document(folder: Path, number: int, rng: Random) -> Document:
    tenant = TENANTS[number % len(TENANTS)]
    name = f"{rng.choice(_KINDS)}-{number:03}"
    request_type = _request_type(number)
    payload = {"sis": {"prompt_set": PROMPTS}} if request_type.endswith("SIS") else {}
    source = folder / "in" / tenant / f"{name}.txt"
    command = _command(source, name, request_type, payload, _text(tenant, name, rng).encode())
    if number % 2:
        command |= {"mode": "BURST", "doc_id": name}
    return Document(tenant, name, command)


def _request_type(number: int) -> str:
    """Return mostly the type of the whole pipeline."""
    return {5: "OCR_EMBEDDING", 9: "OCR", 11: "OCR->EMBEDDING->SIS"}.get(number % 12, "OCR_EMBEDDING_SIS")


def review(folder: Path, name: str) -> Document:
    source = folder / "in" / REVIEW_TENANT / f"{name}.txt"
    payload = {"review": {"question": "May we sign this?"}}
    data = f"Memo {name}. Please read and approve it.\n".encode()
    command = _command(source, name, "DEMO_REVIEW", payload, data)
    return Document(REVIEW_TENANT, name, command)


def _command(source: Path, name: str, request_type: str, payload: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Write the document to `blob://in/<tenant>/…`; its result goes to `blob://out/<tenant>/…`."""
    tenant = source.parent.name
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(data)
    return {
        "tenant_id": tenant,
        "request_type": request_type,
        "input_ref": f"blob://in/{tenant}/{quote(source.name)}",
        "output_ref": f"blob://out/{tenant}/{quote(source.stem)}.out",
        "payload": payload,
        "schema_version": "v1",
        "idempotency_key": f"{tenant}/{name}",
    }


def _text(tenant: str, name: str, rng: Random) -> str:
    price = rng.randrange(1_000, 90_000, 250)
    return (
        f"{name.title()} between {tenant.title()} Ltd and its supplier in {rng.choice(_PLACES)}.\n\n"
        f"The supplier shall deliver {rng.choice(_GOODS)} to {rng.choice(_PLACES)} {rng.choice(_TERMS)}. "
        f"{tenant.title()} pays {price} euros {rng.choice(_TERMS)} after delivery. "
        f"If the delivery is late, the price falls by {rng.randint(1, 9)} percent for each week. "
        "Either party may end this agreement in writing.\n"
    )
