"""Images as pages: PNG, JPEG, TIFF with many pages, WebP, BMP, GIF."""

import io
from typing import TYPE_CHECKING, Any

from lucius.services.engine import Engine
from lucius.services.extras import hint, load
from lucius.services.pages import MAX_PAGES, MAX_SOURCE_PIXELS, Page, bearable
from lucius.services.text import NotText

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF")
WHITE = 255
# What Pillow raises for damaged files, beside its own UnidentifiedImageError, which is an OSError.
_DAMAGED = (OSError, ValueError, SyntaxError, EOFError, IndexError, TypeError, MemoryError, OverflowError)


class ImageSheets:
    def __init__(self, data: bytes, engine: Engine | None) -> None:
        self._pillow: Any = load("PIL.Image", "ocr")
        self._turned: Any = load("PIL.ImageOps", "ocr")
        if engine is None or self._pillow is None or self._turned is None:
            raise NotText(f"an image: reading pixels needs an OCR engine ({hint('ocr')})")
        self._engine = engine
        self._bomb: type[Exception] = self._pillow.DecompressionBombError
        try:
            self._file: Any = self._pillow.open(io.BytesIO(data), formats=FORMATS)
        except self._bomb as error:
            raise _too_large() from error
        except _DAMAGED as error:
            raise _damaged(1, error) from error
        # Further frames of a GIF or a WebP are an animation's.
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
        """Counted one by one up to our limit: a file can chain any number of them."""
        try:
            for number in range(1, MAX_PAGES + 1):
                self._file.seek(number)
        except EOFError:
            return int(self._file.tell()) + 1
        except _DAMAGED as error:
            raise _damaged(int(self._file.tell()) + 1, error) from error
        return MAX_PAGES + 1

    def _grey(self) -> "Image":
        """In shades of grey, upright, on white where it is transparent, and no larger than a page may be."""
        frame: Any = self._file
        if frame.has_transparency_data:
            frame = frame.convert("RGBA")
            paper = self._pillow.new("RGBA", frame.size, (WHITE, WHITE, WHITE, WHITE))
            frame = self._pillow.alpha_composite(paper, frame)
        grey: Image = self._turned.exif_transpose(frame.convert("L"))
        width, height = grey.size
        scale = bearable(width, height)
        return grey if scale >= 1 else grey.resize((max(1, int(width * scale)), max(1, int(height * scale))))


def _too_large(number: int = 1) -> NotText:
    return NotText(f"page {number} has more than {MAX_SOURCE_PIXELS} pixels", code="INPUT_TOO_LARGE")


def _damaged(number: int, error: BaseException) -> NotText:
    return NotText(f"page {number} of the image is damaged ({type(error).__name__})", code="DAMAGED_INPUT")
