"""Detection of file types from their bytes."""

import io

import pytest
from PIL import Image

from lucius.reference_services.text import UnreadableInput, decode_text, detect_kind


def white(mode: str, kind: str) -> bytes:
    """Return an image that is white for longer than the prefix that is inspected."""
    paper = Image.new(mode, (800, 200), "white")
    paper.paste(Image.new(mode, (800, 20), "black"), (0, 90))
    file = io.BytesIO()
    paper.save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["TIFF", "BMP", "GIF", "PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_white_scan_is_detected_as_an_image_in_every_format(mode: str, kind: str) -> None:
    assert detect_kind(white(mode, kind)) == "image"


def test_truncated_or_mislabelled_bitmap_is_an_image() -> None:
    data = white("L", "BMP")
    assert detect_kind(data[:500]) == "image"
    assert detect_kind(data[:6] + b"made" + data[10:]) == "image"


@pytest.mark.parametrize(
    "text", ["BM", "BMW builds cars.", "GIF89a is a kind of picture.", "GIF8", "II. Scope", "MM", "RIFF: WEBP files"]
)
def test_text_can_begin_like_an_image(text: str) -> None:
    assert detect_kind(text.encode()) == "text"


@pytest.mark.parametrize(
    "data",
    [
        b"P5 800 200 255\n" + b"\xff" * 100_000,
        b"P5 90 1 255\n" + b"\xff" * 89 + b"\0",
        b"RIFF\0\0\0\0WAVE" + b"\x80" * 5000,
    ],
    ids=["pgm", "small pgm", "silence"],
)
def test_binary_data_is_no_text(data: bytes) -> None:
    with pytest.raises(UnreadableInput):
        detect_kind(data)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [("日本語の文書" * 20_000, "utf-8"), ("Grüße aus Köln", "utf-8"), ("Grüße aus Köln", "latin-1")],
)
def test_utf_8_and_latin_1_are_text(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    assert (detect_kind(data), decode_text(data)) == ("text", text)
