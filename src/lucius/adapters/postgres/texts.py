"""Names and texts as PostgreSQL takes them."""


def findable(text: str) -> bool:
    """What can't be kept as text was never kept: whoever asks for it must find nothing, and no error."""
    return "\x00" not in text


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
