"""Short texts for authors: durations, hosts, lists."""

from collections.abc import Iterable
from urllib.parse import urlsplit

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def duration(ms: int) -> str:
    """Format a duration in at most two units: `1.5 s`, `2 min`, `1 h 30 min`."""
    if ms < 60_000:
        return f"{ms / 1000:g} s"
    for position, (size, unit) in enumerate(_UNITS):
        if ms >= size:
            smaller, small_unit = _UNITS[position + 1]
            whole, rest = divmod(ms, size)
            less = round(rest / smaller)
            return f"{whole} {unit} {less} {small_unit}" if less else f"{whole} {unit}"
    raise AssertionError("a minute is larger than the smallest unit")


def elapsed(ms: int) -> str:
    """Format the time since the start for a column: `0:01:05.2`, with the days once there are any."""
    days, rest = divmod(ms, 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds = f"{rest / 1000:06.3f}".rstrip("0").rstrip(".") if rest % 1000 else f"{rest // 1000:02d}"
    clock = f"{hours}:{minutes:02d}:{seconds}"
    return f"{days}d {clock}" if days else clock


def host(url: str) -> str:
    """Return the host of a request; the whole URL template if the host is not literal."""
    try:
        found = urlsplit(url).netloc
    except ValueError:
        found = ""
    return found if found and "${" not in found else url


def any_of(names: Iterable[str]) -> str:
    return " or ".join(names)


def shortened(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
