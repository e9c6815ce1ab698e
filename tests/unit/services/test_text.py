"""What bytes are, told from the bytes."""

import io

import pytest
from PIL import Image

from lucius.services.text import NotText, kind_of, plain_text


def white(mode: str, kind: str) -> bytes:
    """A sheet that is white for more than we look at."""
    paper = Image.new(mode, (800, 200), "white")
    paper.paste(Image.new(mode, (800, 20), "black"), (0, 90))
    file = io.BytesIO()
    paper.save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["TIFF", "BMP", "GIF", "PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_white_scan_is_an_image_however_it_is_packed(mode: str, kind: str) -> None:
    assert kind_of(white(mode, kind)) == "image"


def test_a_bitmap_that_was_cut_off_or_lies_about_its_size_is_still_an_image() -> None:
    data = white("L", "BMP")
    assert kind_of(data[:500]) == "image"
    assert kind_of(data[:6] + b"made" + data[10:]) == "image"


@pytest.mark.parametrize(
    "text", ["BM", "BMW builds cars.", "GIF89a is a kind of picture.", "GIF8", "II. Scope", "MM", "RIFF: WEBP files"]
)
def test_a_text_may_begin_like_an_image(text: str) -> None:
    assert kind_of(text.encode()) == "text"


@pytest.mark.parametrize(
    "data",
    [
        b"P5 800 200 255\n" + b"\xff" * 100_000,
        b"P5 90 1 255\n" + b"\xff" * 89 + b"\0",
        b"RIFF\0\0\0\0WAVE" + b"\x80" * 5000,
    ],
    ids=["pgm", "small pgm", "silence"],
)
def test_bytes_that_are_mostly_not_letters_are_no_text(data: bytes) -> None:
    with pytest.raises(NotText):
        kind_of(data)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [("日本語の文書" * 20_000, "utf-8"), ("Grüße aus Köln", "utf-8"), ("Grüße aus Köln", "latin-1")],
)
def test_text_in_utf_8_and_in_the_old_western_encoding_is_text(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    assert (kind_of(data), plain_text(data)) == ("text", text)
