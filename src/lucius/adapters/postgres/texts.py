"""What PostgreSQL can't keep as text was never kept: whoever asks for it must find nothing, and no error."""


def findable(text: str) -> bool:
    return "\x00" not in text
