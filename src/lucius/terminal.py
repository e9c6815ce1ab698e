"""Makes untrusted text safe to print on a terminal: removes or escapes escape codes, control characters and bidi marks.

Imports the standard library only, because the command line and every process that logs use it.
"""

import re
from collections.abc import MutableMapping
from typing import Any

# C0 except tab and newline, DEL, C1, characters that reorder or break lines, and surrogates.
_BEYOND_ASCII = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f{_BEYOND_ASCII}]")
_UNSAFE_IN_JSON = re.compile(f"[{_BEYOND_ASCII}]")


def strip_controls(text: str) -> str:
    """Remove characters that a terminal acts on; the rest of an escape sequence, such as `[31m`, stays readable."""
    return _UNSAFE.sub("", text)


def escape_json(text: str) -> str:
    """Escape characters that a terminal acts on as `\\uXXXX`. `text` must be JSON; its value does not change."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def strip_log_entry(logger: Any, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Strip control characters from a log entry: a structlog processor for console logs."""
    for name, value in entry.items():
        if isinstance(value, str):
            entry[name] = strip_controls(value)
    return entry
