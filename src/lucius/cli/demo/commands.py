"""What the demo submits: small real documents of several tenants, in both modes."""

from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

TENANTS = ("acme", "globex", "initech")
REVIEW_TENANT = "umbrella"
PROMPTS = ["What must the supplier deliver, and when?", "Who pays, and how much?", "What if it is late?"]

_KINDS = ("contract", "invoice", "claim", "tender")
_GOODS = ("four hydraulic presses", "nine hundred desk lamps", "the annual audit", "two tonnes of copper wire")
_TERMS = ("within thirty days", "before the end of the quarter", "on the first Monday of March", "without delay")
_PLACES = ("Hamburg", "Lyon", "Gdansk", "Porto", "Turin")


class Document(Struct, frozen=True):
    """A document to be processed, and what is asked for it."""

    tenant: str
    name: str
    command: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{self.tenant}'s {self.name}"


def documents(folder: Path, count: int, rng: Random) -> list[Document]:
    """Write `count` documents below `folder`, and say what to do with each."""
    return [_document(folder, number, rng) for number in range(count)]


def _document(folder: Path, number: int, rng: Random) -> Document:
    tenant = TENANTS[number % len(TENANTS)]
    name = f"{rng.choice(_KINDS)}-{number:03}"
    request_type = _request_type(number)
    payload = {"sis": {"prompt_set": PROMPTS}} if request_type.endswith("SIS") else {}
    command = _command(folder, tenant, name, request_type, payload, _text(tenant, name, rng))
    if number % 2:
        command |= {"mode": "BURST", "doc_id": name}
    return Document(tenant, name, command)


def _request_type(number: int) -> str:
    """Mostly the whole pipeline."""
    return {5: "OCR_EMBEDDING", 9: "OCR", 11: "OCR->EMBEDDING->SIS"}.get(number % 12, "OCR_EMBEDDING_SIS")


def review(folder: Path, name: str) -> Document:
    text = f"Memo {name}. Please read and approve it.\n"
    payload = {"review": {"question": "May we sign this?"}}
    command = _command(folder, REVIEW_TENANT, name, "DEMO_REVIEW", payload, text)
    return Document(REVIEW_TENANT, name, command)


def _command(
    folder: Path, tenant: str, name: str, request_type: str, payload: dict[str, Any], text: str
) -> dict[str, Any]:
    source, target = folder / "in" / tenant / f"{name}.txt", folder / "out" / tenant / f"{name}.out"
    source.parent.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text)
    return {
        "tenant_id": tenant,
        "request_type": request_type,
        "input_ref": source.as_uri(),
        "output_ref": target.as_uri(),
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
