"""OCR without its extra: formats that the standard library can read."""

import json
import time
import zlib
from hashlib import sha256
from pathlib import Path

import pytest
from scripts.demo_pdf import Page, document

from tests.integration.reference_services.support import run, run_text

pytestmark = pytest.mark.usefixtures("without_extras")


def pdf(*contents: bytes, deflate: bool = False) -> bytes:
    body = b"%PDF-1.4\n1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj\n"
    for number, content in enumerate(contents):
        data = zlib.compress(content) if deflate else content
        filter_ = b" /Filter /FlateDecode" if deflate else b""
        body += b"%d 0 obj\n<</Length %d%s>>\nstream\n%s\nendstream\nendobj\n" % (number + 3, len(data), filter_, data)
    return body + b"%%EOF\n"


async def test_text_file_is_used_unchanged(tmp_path: Path) -> None:
    text = "Grüße\fzweite Seite"
    outcome = await run_text("ocr", tmp_path, text)
    ref, pages = outcome.artifact_refs
    assert ref.endswith("/workspace/ocr/1/output.txt")
    assert pages.endswith("/workspace/ocr/1/pages.json")
    assert (outcome.folder / "output.txt").read_text() == text
    assert outcome.result == {
        "pages": 2,
        "chars": len(text),
        "text_pages": 2,
        "ocr_pages": 0,
        "sha256": sha256(text.encode()).hexdigest(),
    }


async def test_only_requested_pages_are_read(tmp_path: Path) -> None:
    outcome = await run_text("ocr", tmp_path, "one\ftwo\fthree", {"pages": [3, 1, 9, 3], "dpi": 300})
    assert (outcome.folder / "output.txt").read_text() == "one\fthree"
    assert outcome.result["pages"] == 2
    assert b'{"number":3,"start":4,"end":9,' in (outcome.folder / "pages.json").read_bytes()


@pytest.mark.parametrize("deflate", [False, True])
async def test_text_is_read_from_a_pdf(tmp_path: Path, deflate: bool) -> None:
    first = b"BT /F1 12 Tf 72 720 Td (Hello \\(PDF\\) w\\366rld) Tj 0 -14 Td [(Sp) -20 (lit) -300 (words)] TJ ET"
    second = b"BT <48692074686572 65> Tj ET"
    outcome = await run("ocr", tmp_path, input=pdf(first, second, deflate=deflate))
    assert (outcome.folder / "output.txt").read_text() == "Hello (PDF) wörld\nSplit words\fHi there"
    assert outcome.result["pages"] == 2


async def test_unreadable_pdf_pages_are_counted(tmp_path: Path) -> None:
    pages = b"<</Type /Page>> <</Type/Page /Rotate 0>> <</Type /Pages>>"
    outcome = await run("ocr", tmp_path, input=pdf(b"BT (text) Tj ET", b"q /Im1 Do Q") + pages)
    assert outcome.result["pages"] == 2
    assert outcome.result["text_pages"] == outcome.result["unread_pages"] == 1


def tree(*pages: tuple[bytes, ...], order: bytes = b"") -> bytes:
    """Return a PDF whose pages are objects 10, 20, 30 and so on, each with its content streams."""
    parts = [b"%PDF-1.4\n1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj\n"]
    for number, contents in enumerate(pages, start=1):
        ids = [10 * number + offset for offset in range(1, len(contents) + 1)]
        refs = b" ".join(b"%d 0 R" % found for found in ids)
        parts.append(b"%d 0 obj <</Type /Page /Contents [%s]>> endobj\n" % (10 * number, refs))
        parts += [
            b"%d 0 obj <</Length 9>>\nstream\n%s\nendstream endobj\n" % item for item in zip(ids, contents, strict=True)
        ]
    kids = order or b" ".join(b"%d 0 R" % (10 * number) for number in range(1, len(pages) + 1))
    return b"".join([*parts, b"2 0 obj <</Type /Pages /Kids [%s]>> endobj\n" % kids])


SCAN = b"q /Im1 Do Q"


@pytest.mark.parametrize(
    ("data", "pages"),
    [
        (tree((b"BT (one) Tj ET",), (SCAN,), (b"BT (three) Tj ET",)), ["one", None, "three"]),
        (tree((SCAN,), (b"BT (a) Tj ET", b"BT (b) Tj ET")), [None, "a\nb"]),
        (tree((b"BT (one) Tj ET",), (SCAN,), (b"BT (x) Tj ET",), order=b"30 0 R 20 0 R 10 0 R"), ["x", None, "one"]),
        (
            tree((b"BT (one) Tj ET",), (SCAN,), (b"BT (x) Tj ET",), order=b"90 0 R 10 0 R")
            + b"90 0 obj <</Type /Pages /Kids [30 0 R 20 0 R 2 0 R]>>",
            ["one", None, "x"],
        ),
        (
            tree((SCAN,), (b"BT (one) Tj ET",)) + b"7 0 obj <</Form 1>>\nstream\nBT (drawn) Tj ET\nendstream",
            ["one", "drawn"],
        ),
    ],
    ids=["scan between", "two streams", "other order", "in a circle", "text in a drawing"],
)
async def test_pages_keep_their_positions_next_to_a_scan(tmp_path: Path, data: bytes, pages: list[str | None]) -> None:
    outcome = await run("ocr", tmp_path, input=data)
    found = json.loads((outcome.folder / "pages.json").read_bytes())["pages"]
    assert [page["method"] for page in found] == ["none" if text is None else "text" for text in pages]
    assert (outcome.folder / "output.txt").read_text().split("\f") == [text or "" for text in pages]


@pytest.mark.parametrize(
    ("data", "code", "helps"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)), "UNSUPPORTED_INPUT", True),
        (b"\xff\xd8\xff\xe0" + bytes(range(256)), "UNSUPPORTED_INPUT", True),
        (b"RIFF\0\0\0\0WEBP" + bytes(range(256)), "UNSUPPORTED_INPUT", True),
        (b"RIFF\0\0\0\0WAVE" + bytes(range(256)), "UNSUPPORTED_INPUT", False),
        (bytes(range(256)) * 4, "UNSUPPORTED_INPUT", False),
        (pdf(b"q 1 0 0 1 0 0 cm /Im1 Do Q"), "UNSUPPORTED_INPUT", True),
        (pdf(b"BT (\\001\\002\\003\\004) Tj ET"), "UNSUPPORTED_INPUT", True),
        (pdf(b"BT (secret) Tj ET") + b"trailer <</Encrypt 9 0 R>>", "ENCRYPTED_INPUT", False),
        (b"\xff\xfe\x00", "UNSUPPORTED_INPUT", False),
    ],
    ids=["png", "jpeg", "webp", "wave", "binary", "scanned pdf", "glyph ids", "encrypted", "broken utf-16"],
)
async def test_input_without_readable_text_is_not_retried_and_says_what_would_help(
    tmp_path: Path, data: bytes, code: str, helps: bool
) -> None:
    outcome = await run("ocr", tmp_path, input=data)
    assert (outcome.code, outcome.failure_class) == (code, "NON_RETRYABLE")
    assert ("pip install 'lucius[ocr]'" in str(outcome.message)) == helps


async def test_hostile_pdf_is_refused_quickly(tmp_path: Path) -> None:
    content = b"BT " + b"(a" * 200_000 + b"<" * 200_000 + b"((a)(" * 50_000
    began = time.process_time()
    outcome = await run("ocr", tmp_path, input=pdf(content) + b"<<x" * 200_000 + b"/Type" * 100_000)
    assert outcome.code == "UNSUPPORTED_INPUT"
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "part",
    [b"/Type /Page ", b"<</Image>>stream\n", b"<</Filter /FlateDecode>>stream\n", b"/Kids [", b"1 0 obj ", b"1 0 R "],
)
async def test_long_hostile_pdf_is_processed_quickly(tmp_path: Path, part: bytes) -> None:
    began = time.process_time()
    await run("ocr", tmp_path, input=b"%PDF-1.4\n1 0 obj /Kids [" + part * (2_000_000 // len(part)))
    assert time.process_time() - began < 5


async def test_missing_document_is_not_retried(tmp_path: Path) -> None:
    for name in ("ocr", "embedding", "sis"):
        payload = {"prompt_set": ["Who pays?"]} if name == "sis" else {}
        outcome = await run(name, tmp_path / name, payload, input_ref="blob://in/a.pdf")
        assert (outcome.code, outcome.failure_class) == ("INPUT_NOT_FOUND", "NON_RETRYABLE")


@pytest.mark.parametrize("name", ["ocr", "embedding"])
@pytest.mark.parametrize(
    "data",
    [b"", b" \n\f\n", document([]), document([Page(b"")]), document([Page(b""), Page(b" ")])],
    ids=["no bytes", "white space", "pdf without pages", "blank pdf", "two blank pages"],
)
async def test_document_without_content_is_not_retried(tmp_path: Path, name: str, data: bytes) -> None:
    outcome = await run(name, tmp_path, input=data)
    assert (outcome.code, outcome.failure_class) == ("EMPTY_INPUT", "NON_RETRYABLE")


async def test_last_step_writes_the_output(tmp_path: Path) -> None:
    outcome = await run_text("ocr", tmp_path, "text", last_step=True)
    assert outcome.output.read_text() == "text"
    assert outcome.result["output_ref"] == f"file://{outcome.output}"


async def test_earlier_step_writes_no_output(tmp_path: Path) -> None:
    assert not (await run_text("ocr", tmp_path, "text")).output.exists()


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"pages": "all"}, "INVALID_PAYLOAD"),
        ({"dpi": 10}, "INVALID_PAYLOAD"),
        ({"pages": [7]}, "NO_SUCH_PAGE"),
        ({"pages": []}, "NO_SUCH_PAGE"),
    ],
)
async def test_invalid_ocr_payload_is_not_retried(tmp_path: Path, payload: dict[str, object], code: str) -> None:
    outcome = await run_text("ocr", tmp_path, "one\ftwo", payload)
    assert (outcome.code, outcome.failure_class) == (code, "NON_RETRYABLE")


async def test_document_with_too_many_pages_is_refused_unless_some_are_chosen(tmp_path: Path) -> None:
    text = "\f".join(["page"] * 2001)
    assert (await run_text("ocr", tmp_path, text)).code == "TOO_MANY_PAGES"
    assert (await run_text("ocr", tmp_path, text, {"pages": [2001]})).result["pages"] == 1


async def test_oversized_text_is_refused(tmp_path: Path) -> None:
    assert (await run_text("ocr", tmp_path, "x" * 32_000_001)).code == "INPUT_TOO_LARGE"
