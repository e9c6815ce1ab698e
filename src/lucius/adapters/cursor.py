"""Page cursors: opaque to clients, a position to the reader that gave them out."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

_PREFIX = b"jobs:"


def encode_cursor(position: int) -> str:
    return urlsafe_b64encode(_PREFIX + str(position).encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> int:
    """Raises ValueError for anything that `encode_cursor` did not make."""
    try:
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except ValueError as error:
        raise ValueError("not a cursor of this list") from error
    digits = raw.removeprefix(_PREFIX)
    if not raw.startswith(_PREFIX) or not digits.isdigit() or len(digits) > 18:
        raise ValueError("not a cursor of this list")
    return int(digits)
