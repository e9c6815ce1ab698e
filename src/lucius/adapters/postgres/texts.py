"""What PostgreSQL can't keep as text was never kept: whoever asks for it must find nothing, and no error."""


def findable(text: str) -> bool:
    if "\x00" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
