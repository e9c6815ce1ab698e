import hashlib
import zlib
from pathlib import Path

import pytest

from lucius.services import Ocr
from lucius.worker import FailureClass, StepFailure
from tests.unit.services.support import stored, task


def pdf(*contents: bytes, deflate: bool = False) -> bytes:
    body = b"%PDF-1.4\n1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj\n"
    for number, content in enumerate(contents):
        data = zlib.compress(content) if deflate else content
        filter_ = b" /Filter /FlateDecode" if deflate else b""
        body += b"%d 0 obj\n<</Length %d%s>>\nstream\n%s\nendstream\nendobj\n" % (number + 3, len(data), filter_, data)
    return body + b"%%EOF\n"


def put(tmp_path: Path, data: bytes) -> str:
    file = tmp_path / "in.bin"
    file.write_bytes(data)
    return f"file://{file}"


async def test_a_text_file_is_taken_as_it_is(tmp_path: Path) -> None:
    text = "Grüße\fzweite Seite"
    work = task(tmp_path, "ocr", input_ref=put(tmp_path, text.encode()))
    output = await Ocr().execute(work)
    (ref,) = output.artifact_refs
    assert ref.endswith("/job-1/ocr/1/output.txt")
    assert stored(tmp_path, ref).read_text() == text
    assert output.result == {
        "pages": 2,
        "chars": len(text),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


async def test_only_the_pages_asked_for_are_read(tmp_path: Path) -> None:
    ref = put(tmp_path, b"one\ftwo\fthree")
    output = await Ocr().execute(task(tmp_path, "ocr", input_ref=ref, payload={"pages": [3, 1, 9], "dpi": 300}))
    assert stored(tmp_path, output.artifact_refs[0]).read_text() == "one\fthree"
    assert output.result["pages"] == 2


@pytest.mark.parametrize("deflate", [False, True])
async def test_text_is_read_from_a_pdf(tmp_path: Path, deflate: bool) -> None:
    first = b"BT /F1 12 Tf 72 720 Td (Hello \\(PDF\\) w\\366rld) Tj 0 -14 Td [(Sp) -20 (lit) -300 (words)] TJ ET"
    second = b"BT <48692074686572 65> Tj ET"
    work = task(tmp_path, "ocr", input_ref=put(tmp_path, pdf(first, second, deflate=deflate)))
    output = await Ocr().execute(work)
    text = stored(tmp_path, output.artifact_refs[0]).read_text()
    assert text == "Hello (PDF) wörld\nSplit words\fHi there"
    assert output.result["pages"] == 2


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)),
        b"\xff\xd8\xff\xe0" + bytes(range(256)),
        bytes(range(256)) * 4,
        pdf(b"q 1 0 0 1 0 0 cm /Im1 Do Q"),
        pdf(b"BT (\\001\\002\\003\\004) Tj ET"),
        pdf(b"BT (secret) Tj ET") + b"trailer <</Encrypt 9 0 R>>",
        b"\xff\xfe\x00",
    ],
    ids=["png", "jpeg", "binary", "scanned pdf", "glyph ids", "encrypted", "broken utf-16"],
)
async def test_what_holds_no_readable_text_fails_for_good(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(StepFailure) as failed:
        await Ocr().execute(task(tmp_path, "ocr", input_ref=put(tmp_path, data)))
    assert (failed.value.code, failed.value.failure_class) == ("UNSUPPORTED_INPUT", FailureClass.NON_RETRYABLE)


async def test_a_hostile_pdf_is_read_quickly(tmp_path: Path) -> None:
    content = b"BT " + b"(a" * 200_000 + b"<" * 200_000 + b"((a)(" * 50_000
    with pytest.raises(StepFailure, match="UNSUPPORTED_INPUT"):
        await Ocr().execute(task(tmp_path, "ocr", input_ref=put(tmp_path, pdf(content) + b"<<x" * 200_000)))


@pytest.mark.parametrize(
    ("ref", "code"), [("blob://in/a.pdf", "INPUT_NOT_FOUND"), ("https://x.example/a.pdf", "UNSUPPORTED_REF")]
)
async def test_a_made_up_ref_fails_for_good_unless_in_a_demo(tmp_path: Path, ref: str, code: str) -> None:
    with pytest.raises(StepFailure) as failed:
        await Ocr().execute(task(tmp_path, "ocr", input_ref=ref))
    assert (failed.value.code, failed.value.failure_class) == (code, FailureClass.NON_RETRYABLE)
    demo = Ocr(demo_inputs=True)
    one = await demo.execute(task(tmp_path, "ocr", input_ref=ref))
    other = await demo.execute(task(tmp_path, "ocr", input_ref=ref, attempt_no=2))
    assert one.result == other.result
    assert one.result["chars"] > 500


async def test_in_a_demo_a_document_that_exists_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "blobs/in").mkdir(parents=True)
    (tmp_path / "blobs/in/a.txt").write_text("real")
    output = await Ocr(demo_inputs=True).execute(task(tmp_path, "ocr", input_ref="blob://in/a.txt"))
    assert output.result["chars"] == 4


async def test_the_last_step_writes_what_the_client_wants(tmp_path: Path) -> None:
    work = task(
        tmp_path, "ocr", input_ref=put(tmp_path, b"text"), last_step=True, output_ref=f"file://{tmp_path}/out/a.txt"
    )
    output = await Ocr().execute(work)
    assert (tmp_path / "out/a.txt").read_text() == "text"
    assert output.result["output_ref"] == f"file://{tmp_path}/out/a.txt"


async def test_an_earlier_step_leaves_output_ref_alone(tmp_path: Path) -> None:
    work = task(tmp_path, "ocr", input_ref=put(tmp_path, b"text"), output_ref=f"file://{tmp_path}/out/a.txt")
    await Ocr().execute(work)
    assert not (tmp_path / "out").exists()


async def test_in_a_demo_an_https_output_is_kept_under_the_blob_root(tmp_path: Path) -> None:
    ref = "https://x.example/out/"
    work = task(tmp_path, "ocr", input_ref=put(tmp_path, b"text"), last_step=True, output_ref=ref)
    output = await Ocr(demo_inputs=True).execute(work)
    assert stored(tmp_path, output.result["output_ref"]).read_text() == "text"
