"""OCR with its extra: text layers of PDFs, and images."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from scripts.demo_pdf import Line, Page, document, image_page, text_page

from lucius.contract import ProgressCounts
from lucius.reference_services import pages, pdf
from lucius.reference_services.engine import OcrText
from lucius.reference_services.extras import load
from lucius.worker import StopReason
from tests.integration.reference_services.support import StopsAt, hide, picture, run

WORDS = "The committee approved the annual budget of the northern district without further discussion."


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def text_of(outcome: Any) -> str:
    return str((outcome.folder / "output.txt").read_text())


def scanned(*lines: str) -> Page:
    paper = Image.new("L", (1240, 1754), 255)
    paper.paste(picture(*lines), (60, 200))
    return image_page(paper)


async def test_pdf_pages_are_read_by_text_layer_or_ocr(tmp_path: Path) -> None:
    data = document([text_page([Line(WORDS)]), scanned("Invoice 4711"), text_page([Line("short")]), Page(b"")])
    outcome = await run("ocr", tmp_path, input=data)
    assert text_of(outcome) == f"{WORDS}\fInvoice 4711\fshort\f"
    assert outcome.result["pages"] == 4
    assert (outcome.result["text_pages"], outcome.result["ocr_pages"]) == (3, 1)
    assert outcome.result["confidence"] > 0.9
    found = json.loads((outcome.folder / "pages.json").read_bytes())["pages"]
    assert [page["method"] for page in found] == ["text", "ocr", "text", "text"]
    assert [text_of(outcome)[page["start"] : page["end"]] for page in found][:2] == [WORDS, "Invoice 4711"]
    assert found[0]["confidence"] is None
    assert found[1]["confidence"] > 0.9


async def test_page_with_strokes_is_read_by_ocr(tmp_path: Path) -> None:
    data = document([Page(b"60 60 m 200 200 l S"), Page(b"")])
    outcome = await run("ocr", tmp_path, {"dpi": 72, "pages": [1, 2]}, input=data)
    assert (outcome.result["text_pages"], outcome.result["ocr_pages"]) == (1, 1)


async def test_stamp_over_a_scan_does_not_replace_ocr(tmp_path: Path) -> None:
    scan = scanned("Invoice 4711")
    stamped = Page(scan.content + b" BT /F1 9 Tf 20 20 Td (Page 3) Tj ET", scan.image)
    outcome = await run("ocr", tmp_path, input=document([stamped]))
    assert "Invoice 4711" in text_of(outcome)


async def test_stamp_is_used_if_the_pixels_show_nothing(tmp_path: Path) -> None:
    blank = image_page(Image.new("L", (600, 800), 255))
    unseen = Page(blank.content + b" BT /F1 9 Tf 3 Tr 20 20 Td (Page 3) Tj ET", blank.image)
    outcome = await run("ocr", tmp_path, {"dpi": 72}, input=document([unseen]))
    assert text_of(outcome) == "Page 3"
    assert outcome.result["text_pages"] == 1


async def test_unreadable_text_layer_is_not_used(tmp_path: Path) -> None:
    glyphs = Page(b"BT /F1 12 Tf 60 700 Td (" + rb"\001\002\003\004\005\006\007\016" * 10 + b") Tj ET")
    outcome = await run("ocr", tmp_path, input=document([glyphs, text_page([Line(WORDS)])]))
    assert text_of(outcome).endswith(f"\f{WORDS}")
    assert "\x01" not in text_of(outcome)


def test_readable_text_is_distinguished_from_meaningless_characters() -> None:
    assert pdf.is_readable("Grüße, 日本語 — “quoted” ﬁ 1,5 €")
    assert not pdf.is_readable("abc\ufffd\ufffd\ue001\x03")
    assert pdf.is_readable("")


async def test_hyphenated_words_are_joined(tmp_path: Path) -> None:
    outcome = await run("ocr", tmp_path, input=document([text_page([Line("Some infor-"), Line("mation"), Line("")])]))
    assert text_of(outcome) == "Some information"


async def test_force_ocr_ignores_the_text_layer(tmp_path: Path) -> None:
    data = document([text_page([Line("Hello world", 30)])])
    outcome = await run("ocr", tmp_path, {"force_ocr": True, "dpi": 100}, input=data)
    assert outcome.result["ocr_pages"] == 1
    assert text_of(outcome) == "Hello world"


async def test_long_lines_are_read_completely(tmp_path: Path) -> None:
    said = "the goods were inspected by Maria Lindqvist and accepted without reservation."
    lines = [f"Line {number}: {said}" for number in range(12)]
    outcome = await run("ocr", tmp_path, input=saved(picture(*lines, size=28, width=1654), "PNG"))
    assert text_of(outcome).replace("\n\n", "\n").split("\n") == lines


async def test_rows_of_a_skewed_page_stay_together(tmp_path: Path) -> None:
    paper = picture("Circulation pump", "Check valve", "Shaft seal", size=28, width=1200)
    paper.paste(picture("1,240.00 euros", "86.50 euros", "12.75 euros", size=28, width=300), (900, 0))
    askew = paper.rotate(-3, expand=True, fillcolor=255, resample=Image.Resampling.BICUBIC)
    outcome = await run("ocr", tmp_path, input=saved(askew, "PNG"))
    rows = ["Circulation pump 1,240.00 euros", "Check valve 86.50 euros", "Shaft seal 12.75 euros"]
    assert text_of(outcome).split("\n") == rows


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("JPEG", {"quality": 80}), ("TIFF", {}), ("WEBP", {}), ("BMP", {}), ("GIF", {})]
)
async def test_common_image_formats_are_read(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    outcome = await run("ocr", tmp_path, input=saved(picture("Delivery note 815", width=500), kind, **options))
    assert text_of(outcome) == "Delivery note 815"
    assert outcome.result["ocr_pages"] == 1


async def test_every_page_of_a_tiff_is_read(tmp_path: Path) -> None:
    first, second = picture("First page", width=400), picture("Second page", width=400)
    data = saved(first, "TIFF", save_all=True, append_images=[second])
    assert text_of(await run("ocr", tmp_path, input=data)) == "First page\fSecond page"
    assert text_of(await run("ocr", tmp_path, {"pages": [2]}, input=data, attempt_no=2)) == "Second page"


async def test_transparent_and_rotated_images_are_read(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (500, 112), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), mask=picture("Delivery note", width=500).point(lambda value: 255 - value))
    assert text_of(await run("ocr", tmp_path, input=saved(clear, "PNG"))) == "Delivery note"
    camera = Image.Exif()
    camera[0x0112] = 6  # the camera was held upright
    turned = saved(picture("Delivery note", width=500).rotate(90, expand=True), "JPEG", exif=camera)
    assert text_of(await run("ocr", tmp_path, input=turned, attempt_no=2)) == "Delivery note"


@pytest.mark.parametrize(
    "data",
    [document([]), document([Page(b""), Page(b"")]), document([image_page(Image.new("L", (600, 800), 255))])],
    ids=["no pages", "blank pages", "blank scan"],
)
async def test_pdf_without_text_is_not_retried(tmp_path: Path, data: bytes) -> None:
    outcome = await run("ocr", tmp_path, {"dpi": 72}, input=data)
    assert (outcome.code, outcome.failure_class) == ("EMPTY_INPUT", "NON_RETRYABLE")


async def test_pdf_without_pages_is_empty_even_after_a_damaged_one(tmp_path: Path) -> None:
    assert (await run("ocr", tmp_path, input=b"%PDF-1.4\n")).code == "DAMAGED_INPUT"
    assert (await run("ocr", tmp_path, input=document([]), attempt_no=2)).code == "EMPTY_INPUT"


async def test_chosen_page_can_be_blank(tmp_path: Path) -> None:
    outcome = await run("ocr", tmp_path, {"pages": [1]}, input=document([Page(b""), text_page([Line(WORDS)])]))
    assert outcome.result["chars"] == 0


async def test_blank_image_has_no_text_and_does_not_fail(tmp_path: Path) -> None:
    outcome = await run("ocr", tmp_path, input=saved(Image.new("L", (300, 300), 255), "PNG"))
    assert (outcome.result["chars"], outcome.result["confidence"]) == (0, 0.0)


@pytest.mark.parametrize("side", [9_440, 60_000])
async def test_image_with_a_huge_declared_size_is_refused_before_decoding(tmp_path: Path, side: int) -> None:
    header = bytearray(saved(Image.new("L", (8, 8)), "BMP"))
    header[18:26] = side.to_bytes(4, "little") * 2
    outcome = await run("ocr", tmp_path, input=bytes(header))
    assert (outcome.code, outcome.failure_class) == ("INPUT_TOO_LARGE", "NON_RETRYABLE")


async def test_large_pages_are_scaled_down_to_the_pixel_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Ruler:
        def read(self, page: Image.Image, number: int) -> OcrText:
            sizes.append(page.width * page.height)
            return OcrText("", 0.0)

    monkeypatch.setattr("lucius.reference_services.ocr.get_engine", lambda threads: Ruler())
    monkeypatch.setattr(pages, "MAX_PIXELS", 40_000)
    await run("ocr", tmp_path, input=saved(picture("Large", size=200), "PNG"))
    await run("ocr", tmp_path, {"dpi": 1200}, input=document([scanned("Large")]), attempt_no=2)
    assert len(sizes) == 2
    assert all(39_000 < size < 41_000 for size in sizes)


ENCRYPTED = b"/Encrypt <</Filter /Standard /V 1 /R 2 /P -4 /O <%s> /U <%s>>> /ID [<00> <00>]" % (b"41" * 32, b"42" * 32)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (document([text_page([Line("secret")])], ENCRYPTED), "ENCRYPTED_INPUT"),
        (b"%PDF-1.4\nnothing of the kind", "DAMAGED_INPUT"),
        (document([]), "EMPTY_INPUT"),
        (saved(picture("cut off"), "PNG")[:200], "DAMAGED_INPUT"),
        (saved(picture("cut off"), "JPEG")[:300], "DAMAGED_INPUT"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)), "DAMAGED_INPUT"),
    ],
    ids=["encrypted", "no pdf", "no pages", "half a png", "half a jpeg", "no png"],
)
async def test_unopenable_input_is_not_retried(tmp_path: Path, data: bytes, code: str) -> None:
    outcome = await run("ocr", tmp_path, input=data)
    assert (outcome.code, outcome.failure_class) == (code, "NON_RETRYABLE")


async def test_ocr_stops_between_pages_after_a_lost_lease_and_reports_progress(tmp_path: Path) -> None:
    line = StopsAt(2, StopReason.LEASE_LOST)
    data = document([text_page([Line(WORDS)])] * 4)
    outcome = await run("ocr", tmp_path, input=data, line=line)
    assert (outcome.code, outcome.failure_class) == ("LEASE_LOST", "TRANSIENT")
    assert line.last_progress == ProgressCounts(2, 4, "page")
    assert not (outcome.folder / "output.txt").exists()


async def test_scanned_pages_stay_unread_without_an_engine_and_others_are_read(tmp_path: Path) -> None:
    data = document([text_page([Line(WORDS)]), scanned("Invoice 4711")])
    outcome = await run("ocr", tmp_path, input=data, settings={"ocr_engine": "off"})
    assert text_of(outcome) == f"{WORDS}\f"
    assert outcome.result["unread_pages"] == 1
    outcome = await run("ocr", tmp_path, input=document([scanned("x")]), settings={"ocr_engine": "off"}, attempt_no=2)
    assert outcome.code == "UNSUPPORTED_INPUT"
    outcome = await run("ocr", tmp_path, {"force_ocr": True}, input=data, settings={"ocr_engine": "off"}, attempt_no=3)
    assert outcome.code == "ENGINE_MISSING"


async def test_partly_installed_extra_is_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, ["rapidocr"])
    outcome = await run("ocr", tmp_path, input=document([text_page([Line(WORDS)]), scanned("Invoice 4711")]))
    assert outcome.result["unread_pages"] == 1
    outcome = await run("ocr", tmp_path, input=saved(picture("x"), "PNG"), attempt_no=2)
    assert "pip install 'lucius[ocr]'" in str(outcome.message)


@pytest.mark.parametrize("raised", ["OSError('libpdfium.so: cannot open')", "ImportError('libGL.so.1')"])
def test_extra_with_an_unloadable_library_counts_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    (tmp_path / "half_a_wheel.py").write_text(f"raise {raised}")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("half_a_wheel", "ocr") is None


async def test_stamp_is_used_without_an_engine_and_its_scan_counts_as_unread(tmp_path: Path) -> None:
    scan = scanned("Invoice 4711")
    stamped = Page(scan.content + b" BT /F1 9 Tf 20 20 Td (Page 3) Tj ET", scan.image)
    outcome = await run("ocr", tmp_path, input=document([stamped]), settings={"ocr_engine": "off"})
    assert text_of(outcome) == "Page 3"
    assert outcome.result["unread_pages"] == 1
