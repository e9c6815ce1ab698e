"""Page cursors: opaque to clients, a position to the reader that gave them out."""

from base64 import urlsafe_b64decode, urlsafe_b64encode


def encode_cursor(position: int, of: str = "jobs") -> str:
    return urlsafe_b64encode(f"{of}:{position}".encode()).decode().rstrip("=")


def decode_cursor(cursor: str, of: str = "jobs") -> int:
    """Return the position. Raises ValueError for anything that `encode_cursor` did not make for the same list."""
    prefix = f"{of}:".encode()
    try:
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except ValueError as error:
        raise ValueError("not a cursor of this list") from error
    digits = raw.removeprefix(prefix)
    if not raw.startswith(prefix) or not digits.isdigit() or len(digits) > 19 or int(digits) >= 2**63:
        raise ValueError("not a cursor of this list")
    return int(digits)
