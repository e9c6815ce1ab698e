"""What services say about errors is kept and shown to people: short, and without what looks like a secret."""

import re

MAX_MESSAGE = 1_000
_LOOKED_AT = 16_000
MASK = "[…]"

_SECRET = r"passwords?|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key"
_NAME = rf"(?<![\w-])[\w.-]{{0,64}}?(?:{_SECRET}|token|key|sig|signature|credentials?)"
_VALUE = r"""(?:"[^"]*"?|'[^']*'?|[^\s,;&"'<>(){}\[\]]+)"""

_RULES = (
    (r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", MASK),
    (r"\beyJ[\w-]{8,}(?:\.[\w-]*){1,4}", MASK),  # a JSON web token
    (r"""(authorization["']?\s{0,4}[:=]\s{0,4}["']?)[^\r\n"']+""", rf"\1{MASK}"),
    (r"\b(bearer|basic)(\s{1,4})(?!tokens?\b|auth)[\w.~+/=-]+", rf"\1\2{MASK}"),
    (r"""(://)(?:[^\s/?#"'<>]{0,512}|[^\s/:"'<>]{0,256}:[^\s"'<>]{0,512})@""", rf"\1{MASK}@"),
    (r"""(://[^\s?"'<>]{0,2048}\?)[^\s"'<>]+""", rf"\1{MASK}"),
    (rf"({_NAME}=){_VALUE}", rf"\1{MASK}"),
    (rf"""(["']{_NAME}["']\s{{0,4}}[:=]\s{{0,4}}){_VALUE}""", rf"\1{MASK}"),
    (rf"((?<![\w-])[\w.-]{{0,64}}?(?:{_SECRET})\s{{0,4}}[:=]\s{{0,4}}){_VALUE}", rf"\1{MASK}"),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in _RULES)


def redacted(message: str) -> str:
    """At most 1,000 characters, with bearer tokens, values of what is named like a secret, and the user and query
    parts of URLs masked. It can't know every secret: services should not send any."""
    text = message[:_LOOKED_AT]
    for pattern, instead in _COMPILED:
        text = pattern.sub(instead, text)
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
