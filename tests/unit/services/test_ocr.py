"""OCR with its extra: text layers of PDFs, and pixels."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from scripts.demo_pdf import Line, Page, document, image_page, text_page

from lucius.services import pages, pdf
from lucius.services.engine import Reading
from lucius.services.extras import load
from lucius.worker import StopReason
from lucius.worker.context import LocalLine
from tests.unit.services.support import hide, picture, run

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


async def test_each_page_of_a_pdf_is_read_by_its_text_layer_or_its_pixels(tmp_path: Path) -> None:
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


async def test_a_page_of_strokes_is_looked_at_since_letters_may_be_drawn(tmp_path: Path) -> None:
    outcome = await run("ocr", tmp_path, {"dpi": 72}, input=document([Page(b"60 60 m 200 200 l S"), Page(b"")]))
    assert (outcome.result["text_pages"], outcome.result["ocr_pages"]) == (1, 1)


async def test_a_stamp_over_a_scan_does_not_pass_for_its_text(tmp_path: Path) -> None:
    scan = scanned("Invoice 4711")
    stamped = Page(scan.content + b" BT /F1 9 Tf 20 20 Td (Page 3) Tj ET", scan.image)
    outcome = await run("ocr", tmp_path, input=document([stamped]))
    assert "Invoice 4711" in text_of(outcome)


async def test_where_pixels_show_nothing_a_stamp_is_all_there_is(tmp_path: Path) -> None:
    blank = image_page(Image.new("L", (600, 800), 255))
    unseen = Page(blank.content + b" BT /F1 9 Tf 3 Tr 20 20 Td (Page 3) Tj ET", blank.image)
    outcome = await run("ocr", tmp_path, {"dpi": 72}, input=document([unseen]))
    assert text_of(outcome) == "Page 3"
    assert outcome.result["text_pages"] == 1


async def test_a_text_layer_that_is_no_text_is_not_taken(tmp_path: Path) -> None:
    glyphs = Page(b"BT /F1 12 Tf 60 700 Td (" + rb"\001\002\003\004\005\006\007\016" * 10 + b") Tj ET")
    outcome = await run("ocr", tmp_path, input=document([glyphs, text_page([Line(WORDS)])]))
    assert text_of(outcome).endswith(f"\f{WORDS}")
    assert "\x01" not in text_of(outcome)


def test_text_is_told_from_characters_that_mean_nothing() -> None:
    assert pdf.is_readable("Grüße, 日本語 — “quoted” ﬁ 1,5 €")
    assert not pdf.is_readable("abc\ufffd\ufffd\ue001\x03")
    assert pdf.is_readable("")


async def test_words_that_the_end_of_a_line_divides_are_whole_again(tmp_path: Path) -> None:
    outcome = await run("ocr", tmp_path, input=document([text_page([Line("Some infor-"), Line("mation"), Line("")])]))
    assert text_of(outcome) == "Some information"


async def test_force_ocr_reads_pixels_where_there_is_a_text_layer(tmp_path: Path) -> None:
    data = document([text_page([Line("Hello world", 30)])])
    outcome = await run("ocr", tmp_path, {"force_ocr": True, "dpi": 100}, input=data)
    assert outcome.result["ocr_pages"] == 1
    assert text_of(outcome) == "Hello world"


async def test_long_lines_are_read_in_full(tmp_path: Path) -> None:
    said = "the goods were inspected by Maria Lindqvist and accepted without reservation."
    lines = [f"Line {number}: {said}" for number in range(12)]
    outcome = await run("ocr", tmp_path, input=saved(picture(*lines, size=28, width=1654), "PNG"))
    assert text_of(outcome).replace("\n\n", "\n").split("\n") == lines


async def test_rows_of_a_page_askew_stay_together(tmp_path: Path) -> None:
    paper = picture("Circulation pump", "Check valve", "Shaft seal", size=28, width=1200)
    paper.paste(picture("1,240.00 euros", "86.50 euros", "12.75 euros", size=28, width=300), (900, 0))
    askew = paper.rotate(-3, expand=True, fillcolor=255, resample=Image.Resampling.BICUBIC)
    outcome = await run("ocr", tmp_path, input=saved(askew, "PNG"))
    rows = ["Circulation pump 1,240.00 euros", "Check valve 86.50 euros", "Shaft seal 12.75 euros"]
    assert text_of(outcome).split("\n") == rows


@pytest.mark.parametrize(
    ("kind", "options"), [("PNG", {}), ("JPEG", {"quality": 80}), ("TIFF", {}), ("WEBP", {}), ("BMP", {}), ("GIF", {})]
)
async def test_images_of_the_usual_kinds_are_read(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    outcome = await run("ocr", tmp_path, input=saved(picture("Delivery note 815", width=500), kind, **options))
    assert text_of(outcome) == "Delivery note 815"
    assert outcome.result["ocr_pages"] == 1


async def test_every_page_of_a_tiff_is_read(tmp_path: Path) -> None:
    first, second = picture("First page", width=400), picture("Second page", width=400)
    data = saved(first, "TIFF", save_all=True, append_images=[second])
    assert text_of(await run("ocr", tmp_path, input=data)) == "First page\fSecond page"
    assert text_of(await run("ocr", tmp_path, {"pages": [2]}, input=data, attempt_no=2)) == "Second page"


async def test_print_on_a_transparent_ground_and_on_its_side_is_read(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (500, 112), (0, 0, 0, 0))
    clear.paste((0, 0, 0, 255), mask=picture("Delivery note", width=500).point(lambda value: 255 - value))
    assert text_of(await run("ocr", tmp_path, input=saved(clear, "PNG"))) == "Delivery note"
    camera = Image.Exif()
    camera[0x0112] = 6  # the camera was held upright
    turned = saved(picture("Delivery note", width=500).rotate(90, expand=True), "JPEG", exif=camera)
    assert text_of(await run("ocr", tmp_path, input=turned, attempt_no=2)) == "Delivery note"


async def test_an_empty_sheet_has_no_text_and_is_no_failure(tmp_path: Path) -> None:
    outcome = await run("ocr", tmp_path, input=saved(Image.new("L", (300, 300), 255), "PNG"))
    assert (outcome.result["chars"], outcome.result["confidence"]) == (0, 0.0)


@pytest.mark.parametrize("side", [9_440, 60_000])
async def test_a_picture_that_claims_to_be_huge_is_refused_before_it_is_unpacked(tmp_path: Path, side: int) -> None:
    header = bytearray(saved(Image.new("L", (8, 8)), "BMP"))
    header[18:26] = side.to_bytes(4, "little") * 2
    outcome = await run("ocr", tmp_path, input=bytes(header))
    assert (outcome.code, outcome.failure_class) == ("INPUT_TOO_LARGE", "NON_RETRYABLE")


async def test_pages_are_reduced_to_what_is_bearable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Ruler:
        def read(self, page: Image.Image, number: int) -> Reading:
            sizes.append(page.width * page.height)
            return Reading("", 0.0)

    monkeypatch.setattr("lucius.services.ocr.engine_of", lambda threads: Ruler())
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
        (document([]), "DAMAGED_INPUT"),
        (saved(picture("cut off"), "PNG")[:200], "DAMAGED_INPUT"),
        (saved(picture("cut off"), "JPEG")[:300], "DAMAGED_INPUT"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)), "DAMAGED_INPUT"),
    ],
    ids=["encrypted", "no pdf", "no pages", "half a png", "half a jpeg", "no png"],
)
async def test_what_can_not_be_opened_fails_for_good(tmp_path: Path, data: bytes, code: str) -> None:
    outcome = await run("ocr", tmp_path, input=data)
    assert (outcome.code, outcome.failure_class) == (code, "NON_RETRYABLE")


async def test_it_stops_between_pages_once_nobody_waits_and_tells_how_far_it_is(tmp_path: Path) -> None:
    class Impatient(LocalLine):
        def progress(self, done: float) -> None:
            super().progress(done)
            if done >= 0.5:
                self.stop(StopReason.LEASE_LOST)

    line = Impatient()
    data = document([text_page([Line(WORDS)])] * 4)
    outcome = await run("ocr", tmp_path, input=data, line=line)
    assert (outcome.code, outcome.failure_class) == ("LEASE_LOST", "TRANSIENT")
    assert line.last_progress == 0.5
    assert not (outcome.folder / "output.txt").exists()


async def test_without_an_engine_scanned_pages_stay_unread_and_the_others_are_read(tmp_path: Path) -> None:
    data = document([text_page([Line(WORDS)]), scanned("Invoice 4711")])
    outcome = await run("ocr", tmp_path, input=data, settings={"ocr_engine": "off"})
    assert text_of(outcome) == f"{WORDS}\f"
    assert outcome.result["unread_pages"] == 1
    outcome = await run("ocr", tmp_path, input=document([scanned("x")]), settings={"ocr_engine": "off"}, attempt_no=2)
    assert outcome.code == "UNSUPPORTED_INPUT"
    outcome = await run("ocr", tmp_path, {"force_ocr": True}, input=data, settings={"ocr_engine": "off"}, attempt_no=3)
    assert outcome.code == "ENGINE_MISSING"


async def test_an_extra_that_is_there_in_part_is_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, ["rapidocr"])
    outcome = await run("ocr", tmp_path, input=document([text_page([Line(WORDS)]), scanned("Invoice 4711")]))
    assert outcome.result["unread_pages"] == 1
    outcome = await run("ocr", tmp_path, input=saved(picture("x"), "PNG"), attempt_no=2)
    assert "pip install 'lucius[ocr]'" in str(outcome.message)


@pytest.mark.parametrize("raised", ["OSError('libpdfium.so: cannot open')", "ImportError('libGL.so.1')"])
def test_an_extra_whose_library_does_not_load_is_as_good_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: str
) -> None:
    (tmp_path / "half_a_wheel.py").write_text(f"raise {raised}")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("half_a_wheel", "ocr") is None


async def test_without_an_engine_a_stamp_is_kept_and_its_scan_counts_as_unread(tmp_path: Path) -> None:
    scan = scanned("Invoice 4711")
    stamped = Page(scan.content + b" BT /F1 9 Tf 20 20 Td (Page 3) Tj ET", scan.image)
    outcome = await run("ocr", tmp_path, input=document([stamped]), settings={"ocr_engine": "off"})
    assert text_of(outcome) == "Page 3"
    assert outcome.result["unread_pages"] == 1
