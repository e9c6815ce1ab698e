"""Text encoding: values and identifiers in the form PostgreSQL accepts."""


def is_valid_text(text: str) -> bool:
    """Return False if `text` contains a NUL, which PostgreSQL can't store: a lookup must find nothing, not fail."""
    return "\x00" not in text


def quote_identifier(name: str) -> str:
    """Quote a name for use as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
