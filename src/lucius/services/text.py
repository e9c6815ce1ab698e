"""What kind of document bytes are, and the text of those that are text."""

import codecs
from typing import Literal

Kind = Literal["pdf", "image", "text"]

_IMAGES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_SAMPLE = 64 * 1024
_BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class NotText(Exception):
    """No text can be read from these bytes, today or tomorrow."""

    def __init__(self, message: str, *, code: str = "UNSUPPORTED_INPUT") -> None:
        super().__init__(message)
        self.code = code


def kind_of(data: bytes) -> Kind:
    """Raises NotText for what is none of these."""
    if data[:1024].lstrip().startswith(b"%PDF-"):
        return "pdf"
    if data.startswith(tuple(_BOMS)):
        return "text"
    if _is_image(data):  # before anything else is asked: the white of an unpacked scan is no control character
        return "image"
    if not _looks_like_text(data[:_SAMPLE]):
        raise NotText("neither text nor PDF nor an image of a known kind")
    return "text"


def plain_text(data: bytes) -> str:
    """The text of a text file: as its mark says, else UTF-8, else the old Western encoding."""
    for bom, encoding in _BOMS.items():
        if data.startswith(bom):
            try:
                return data.decode(encoding)
            except UnicodeDecodeError as error:
                raise NotText(f"marked as {encoding}, but is not: {error.reason}") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _is_image(data: bytes) -> bool:
    """By its signature; of those that a text might begin with, by what follows too."""
    if data.startswith((b"GIF87a", b"GIF89a")):
        return b"\0" in data[6:13]  # one of size, flags, ground, shape
    if data.startswith(b"BM"):
        return data[6:10] == bytes(4) or int.from_bytes(data[2:6], "little") == len(data)
    return data.startswith(_IMAGES) or (data[:4], data[8:12]) == (b"RIFF", b"WEBP")


def _looks_like_text(sample: bytes) -> bool:
    """Few control characters; and if it is not UTF-8, letters of the old Western encoding among plain ones."""
    control = sum(byte < 9 or 13 < byte < 32 or byte == 127 for byte in sample)
    if control * 100 > len(sample):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return b"\0" not in sample and sum(byte > 127 for byte in sample) * 3 <= len(sample)
    return True
