"""Small files that could use up memory or cause internal errors of the OCR engine do neither."""

import io
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from scripts.demo_pdf import HEIGHT, WIDTH, Line, Page, document, text_page

from lucius.reference_services.engine import get_engine
from lucius.reference_services.extras import load
from lucius.reference_services.pages import max_scale
from tests.integration.reference_services.support import picture, run

MAX_MEGABYTES = 1000
# The peak is read from /proc: that of getrusage starts with the parent's memory at the fork.
READ = """
import re, sys
from lucius.reference_services.engine import get_engine
from lucius.reference_services.reading import open_document
from lucius.reference_services.text import UnreadableInput
for path in sys.argv[1:]:
    try:
        open_document(open(path, "rb").read(), get_engine(1)).read(1)
    except UnreadableInput as error:
        print(error.code)
    else:
        print("read")
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""


def png(width: int, height: int, paper: Image.Image | None = None) -> bytes:
    file = io.BytesIO()
    (paper or Image.new("L", (width, height), 255)).save(file, "PNG")
    return file.getvalue()


def boxed(box: bytes) -> bytes:
    """Return a PDF of one page of this size that needs OCR."""
    a4 = b"[0 0 %d %d]" % (WIDTH, HEIGHT)
    return document([Page(b"0 0 m 1 1 l S")]).replace(a4, box)


def pictured(side: int, bits: int, colours: bytes) -> bytes:
    """Return a PDF of one page with a square black image."""
    per_pixel = bits * (3 if colours == b"RGB" else 1)
    packer = zlib.compressobj(1)
    rows = bytes(side * per_pixel // 8 * 100)
    packed = b"".join(packer.compress(rows) for _ in range(side // 100)) + packer.flush()
    entries = b"/Subtype /Image /Width %d /Height %d /BitsPerComponent %d /ColorSpace /Device%s /Filter /FlateDecode"
    image = b"<<%s /Length %d>>\nstream\n%s\nendstream" % (
        entries % (side, side, bits, colours),
        len(packed),
        packed,
    )
    return document([Page(b"q %d 0 0 %d 0 0 cm /Im1 Do Q" % (WIDTH, HEIGHT), image)])


def striped(width: int, height: int) -> bytes:
    """Return an image that could be taken for one very long line of print."""
    paper = Image.new("L", (width, height), 255)
    for offset in range(0, width, 12):
        paper.paste(0, (offset, height // 4, offset + 6, height * 3 // 4))
    return png(width, height, paper)


def hostile() -> Iterator[tuple[bytes, str]]:
    for size in (
        (1600, 1),
        (3000, 1),
        (8000, 1),
        (8000, 2),
        (40_000, 20),
        (1, 30_000),
        (16, 30_000),
        (9_000, 17),
        (1, 1),
    ):
        yield png(*size), "read"
    yield striped(10_000, 24), "read"
    yield striped(60_000, 60), "read"
    for box in (b"[0 0 1900 0.4]", b"[0 0 0.4 1900]", b"[0 0 14400 9]"):
        yield boxed(box), "read"
    yield pictured(20_000, 1, b"Gray"), "read"
    yield pictured(20_000, 8, b"RGB"), "INPUT_TOO_LARGE"


def test_oddly_shaped_pages_stay_within_the_memory_limit(tmp_path: Path) -> None:
    paths: list[str] = []
    for number, (data, _) in enumerate(hostile()):
        (tmp_path / str(number)).write_bytes(data)
        paths.append(str(tmp_path / str(number)))
    told = subprocess.run([sys.executable, "-c", READ, *paths], capture_output=True, text=True, check=True, timeout=120)
    *outcomes, megabytes = told.stdout.split()
    assert outcomes == [outcome for _, outcome in hostile()]
    assert int(megabytes) < MAX_MEGABYTES


@pytest.mark.parametrize("box", [b"[0 0 14400000 0.01]", b"[0 0 1e9 1e9]", b"[0 0 0 0]"])
async def test_page_of_an_impossible_size_fails_permanently(tmp_path: Path, box: bytes) -> None:
    outcome = await run("ocr", tmp_path, input=boxed(box))
    assert outcome.code in ("DAMAGED_INPUT", "EMPTY_INPUT")
    assert outcome.failure_class == "NON_RETRYABLE"


def test_page_scale_is_bounded() -> None:
    for width, height in ((1e9, 1e9), (1e9, 1e-9), (0.0, 0.0), (595.0, 842.0), (40_000.0, 20.0)):
        scale = max_scale(width, height)
        assert width * height * scale * scale < 30_000_001
        assert max(width, height) * scale < 10_001


async def test_single_long_line_is_read(tmp_path: Path) -> None:
    line = "The committee approved the annual budget of the northern district without further discussion."
    paper = picture(line, size=20, width=1000).crop((0, 20, 1000, 65))
    outcome = await run("ocr", tmp_path, input=png(0, 0, paper))
    assert (outcome.folder / "output.txt").read_text() == line


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("cv2", "error"),
        ("rapidocr.utils.process_img", "ResizeImgError"),
        ("rapidocr.inference_engine.onnxruntime.main", "ONNXRuntimeError"),
        ("builtins", "ValueError"),
    ],
)
async def test_engine_error_means_damaged_input_unless_memory_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    told = ["bad shape"]
    engine = get_engine(1)

    def choke(pixels: Any) -> None:
        raise getattr(load(module, "ocr"), name)(told[0])

    monkeypatch.setattr(engine, "_engine", choke)
    outcome = await run("ocr", tmp_path, input=png(300, 300))
    assert (outcome.code, outcome.failure_class) == ("DAMAGED_INPUT", "NON_RETRYABLE")
    told[0] = "Failed to allocate memory for requested buffer"
    assert (await run("ocr", tmp_path, input=png(300, 300), attempt_no=2)).failure_class == "RETRYABLE"


async def test_huge_image_under_a_text_layer_does_not_prevent_reading_it(tmp_path: Path) -> None:
    words = text_page([Line("The committee approved the annual budget of the northern district in its last session.")])
    data = pictured(20_000, 8, b"RGB").replace(b"q %d 0 0 %d 0 0 cm /Im1 Do Q" % (WIDTH, HEIGHT), words.content)
    outcome = await run("ocr", tmp_path, input=data)
    assert outcome.result["text_pages"] == 1
