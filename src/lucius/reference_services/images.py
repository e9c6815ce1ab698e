"""Reads images as pages: PNG, JPEG, multi-page TIFF, WebP, BMP and GIF."""

import io
from typing import TYPE_CHECKING, Any

from lucius.reference_services.engine import OcrEngine
from lucius.reference_services.extras import install_hint, load
from lucius.reference_services.pages import MAX_PAGES, MAX_SOURCE_PIXELS, Page, max_scale
from lucius.reference_services.text import UnreadableInput

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF")
WHITE = 255
# Raised by Pillow for damaged files; its UnidentifiedImageError is an OSError.
_DAMAGED = (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, MemoryError, OverflowError)


class ImagePageReader:
    def __init__(self, data: bytes, engine: OcrEngine | None) -> None:
        self._pillow: Any = load("PIL.Image", "ocr")
        self._turned: Any = load("PIL.ImageOps", "ocr")
        if engine is None or self._pillow is None or self._turned is None:
            raise UnreadableInput(f"an image: reading pixels needs an OCR engine ({install_hint('ocr')})")
        self._engine = engine
        self._bomb: type[Exception] = self._pillow.DecompressionBombError
        try:
            self._file: Any = self._pillow.open(io.BytesIO(data), formats=FORMATS)
        except self._bomb as error:
            raise _too_large() from error
        except _DAMAGED as error:
            raise _damaged(1, error) from error
        # Further frames of a GIF or WebP belong to an animation.
        self._count = self._frames() if self._file.format == "TIFF" else 1

    @property
    def count(self) -> int:
        return self._count

    def read(self, number: int) -> Page:
        try:
            self._file.seek(number - 1)
            width, height = self._file.size
            if width * height > MAX_SOURCE_PIXELS:
                raise _too_large(number)
            page = self._grey()
        except self._bomb as error:
            raise _too_large(number) from error
        except _DAMAGED as error:
            raise _damaged(number, error) from error
        found = self._engine.read(page, number)
        return Page(number, found.text, "ocr", found.confidence)

    def close(self) -> None:
        self._file.close()

    def _frames(self) -> int:
        """Count frames one by one up to MAX_PAGES: a file can chain any number of them."""
        try:
            for number in range(1, MAX_PAGES + 1):
                self._file.seek(number)
        except EOFError:
            return int(self._file.tell()) + 1
        except _DAMAGED as error:
            raise _damaged(int(self._file.tell()) + 1, error) from error
        return MAX_PAGES + 1

    def _grey(self) -> "Image":
        """Convert the frame to greyscale: upright, on white where transparent, within the page size limits."""
        frame: Any = self._file
        if frame.has_transparency_data:
            frame = frame.convert("RGBA")
            paper = self._pillow.new("RGBA", frame.size, (WHITE, WHITE, WHITE, WHITE))
            frame = self._pillow.alpha_composite(paper, frame)
        grey: Image = self._turned.exif_transpose(frame.convert("L"))
        width, height = grey.size
        scale = max_scale(width, height)
        return grey if scale >= 1 else grey.resize((max(1, int(width * scale)), max(1, int(height * scale))))


def _too_large(number: int = 1) -> UnreadableInput:
    return UnreadableInput(f"page {number} has more than {MAX_SOURCE_PIXELS} pixels", code="INPUT_TOO_LARGE")


def _damaged(number: int, error: BaseException) -> UnreadableInput:
    return UnreadableInput(f"page {number} of the image is damaged ({type(error).__name__})", code="DAMAGED_INPUT")
