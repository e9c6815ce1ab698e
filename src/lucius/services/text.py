"""What kind of document bytes are, and the text of those that are text."""

from typing import Literal

Kind = Literal["pdf", "image", "text"]

_IMAGES = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*", b"BM")
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
    looks_like_text = _looks_like_text(data)
    if not looks_like_text and (data.startswith(_IMAGES) or (data[:4], data[8:12]) == (b"RIFF", b"WEBP")):
        return "image"
    if not looks_like_text:
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


def _looks_like_text(data: bytes) -> bool:
    sample = data[: 64 * 1024]
    control = sum(byte < 9 or 13 < byte < 32 or byte == 127 for byte in sample)
    return control * 100 <= len(sample)
