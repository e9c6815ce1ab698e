"""Detects the kind of a document and decodes text files."""

import codecs
from typing import Literal

DocumentKind = Literal["pdf", "image", "text"]

_IMAGES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_SAMPLE_BYTES = 64 * 1024
_BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class UnreadableInput(Exception):
    """No text can be read from this document; a retry would not help."""

    def __init__(self, message: str, *, code: str = "UNSUPPORTED_INPUT") -> None:
        super().__init__(message)
        self.code = code


def detect_kind(data: bytes) -> DocumentKind:
    """Detect whether the bytes are a PDF, an image or text. Raises UnreadableInput for anything else."""
    if data[:1024].lstrip().startswith(b"%PDF-"):
        return "pdf"
    if data.startswith(tuple(_BOMS)):
        return "text"
    if _is_image(data):  # before the text check: the white of an uncompressed scan has no control characters
        return "image"
    if not _looks_like_text(data[:_SAMPLE_BYTES]):
        raise UnreadableInput("neither text nor PDF nor an image of a known kind")
    return "text"


def decode_text(data: bytes) -> str:
    """Decode a text file by its byte order mark, else as UTF-8, else as Latin-1."""
    for bom, encoding in _BOMS.items():
        if data.startswith(bom):
            try:
                return data.decode(encoding)
            except UnicodeDecodeError as error:
                raise UnreadableInput(f"marked as {encoding}, but is not: {error.reason}") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _is_image(data: bytes) -> bool:
    """Check the signature, and the header too for signatures that a text might begin with."""
    if data.startswith((b"GIF87a", b"GIF89a")):
        return b"\0" in data[6:13]  # in size, flags, background or aspect ratio
    if data.startswith(b"BM"):
        return data[6:10] == bytes(4) or int.from_bytes(data[2:6], "little") == len(data)
    return data.startswith(_IMAGES) or (data[:4], data[8:12]) == (b"RIFF", b"WEBP")


def _looks_like_text(sample: bytes) -> bool:
    """Return whether control characters are rare and, unless it is UTF-8, Latin-1 letters are the minority."""
    control = sum(byte < 9 or 13 < byte < 32 or byte == 127 for byte in sample)
    if control * 100 > len(sample):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return b"\0" not in sample and sum(byte > 127 for byte in sample) * 3 <= len(sample)
    return True
