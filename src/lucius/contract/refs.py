"""Checks refs: whether they are well formed, and whether a ref policy permits them.

Ingress and the SDK call the same functions, so both read a ref in the same way. A ref must not carry a secret: Lucius
stores it, shows it and passes it to services. Imports nothing of Lucius but the message contract.
"""

import re
from collections.abc import Collection, Sequence
from ipaddress import IPv6Address
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, unquote

from lucius.contract import RefRules
from lucius.contract.reserved_names import find_name_fault

Use = Literal["input", "output"]

DEFAULT_PORTS = {"https": 443, "http": 80}
WRITABLE_SCHEMES = ("file",)
"""Schemes of workspace roots to which the SDK can write."""
MAX_REF_CHARS = 4096
TLS_FILE_PARAMETERS = (
    *("sslkey", "sslcert", "sslrootcert", "sslcrl", "passfile"),
    *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"),
)
"""Query parameters of connection URLs that name key and certificate files, as libpq and redis-py spell them."""
NO_BLOB_PATH = "a blob reference needs a path after its container: write blob://container/path"

# Outline of RFC 3986; _CHARACTERS checks the characters of each part.
URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL)
_UNENCODED = r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]*+"
_CHARACTERS = re.compile(rf"{_UNENCODED}(?:%[0-9A-Fa-f]{{2}}{_UNENCODED})*+")
# DNS labels: a resolver may raise its own exceptions for empty or overlong ones.
_LABELS = r"(?=[A-Za-z0-9])[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*(?<=[A-Za-z0-9])"
_HOST = re.compile(rf"({_LABELS}|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?")
_MAX_HOST_CHARS = 253
_MAX_PORT = 65_535
_MAY_BE_DOT_SEGMENT = re.compile(r"(?:^|[/\\])\s*\.")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]|%[01][0-9A-Fa-f]|%7[Ff]")
_SIGNED = re.compile(
    r"""(?:^|[&;?\s])(?:
        sig|signature|token|secret|password|passwd|pwd|credential|
        (?:access|auth|id|refresh|session|sas|security)[_-]?token|
        (?:api|access|account|shared|subscription)[_-]?key|key-pair-id|awsaccesskeyid|googleaccessid|
        x-(?:amz|goog|oss|cos|obs)-(?:signature|credential|security-token)|
        client[_-]?secret
    )=""",
    re.VERBOSE | re.IGNORECASE,
)
_AZURE_STORAGE = re.compile(
    r".+\.(?:blob|dfs)\.(?:core\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)|storage\.azure\.net)"
)


class Ref(NamedTuple):
    """A well-formed ref, split into parts and percent-decoded once, as services decode it."""

    scheme: str
    authority: str
    """For `blob:` refs the container as written; for others the host in lower case, without its port."""
    path: str
    port: int | None = None
    """None for the scheme's default port."""

    @property
    def place(self) -> str:
        """Host and port; the scheme's default port is left out."""
        return self.authority if self.port is None else f"{self.authority}:{self.port}"


def find_form_faults(ref: str, use: Use) -> list[str]:
    """Return the faults of a ref for this use, whatever the policy; an empty list if it is well formed."""
    parts = URI.fullmatch(ref)
    message = check_characters(ref)
    if message is None and parts is None:
        message = "is not a URI: it needs a scheme, as in blob://container/path"
    if message is not None or parts is None:
        return [message or "is not a URI"]
    scheme, authority, path, query, fragment = parts.groups()
    found = (
        _check_authority(scheme.lower(), authority, path),
        _check_path(path),
        _check_name(scheme.lower(), path, use),
        _check_ending(scheme.lower(), query, fragment),
        "must not carry a signature or a token; services use their own credentials"
        if has_secret(query, fragment)
        else None,
    )
    return [message for message in found if message is not None]


def find_policy_faults(ref: str, use: Use, rules: RefRules, setting: str | None = None) -> list[str]:
    """Return the reasons why the rules refuse a ref for this use; an empty list if they permit it.

    `setting` is the place of the rules in the config file; messages name the entry that would permit the ref.
    """
    found = parse_ref(ref)
    if found is None or _CONTROL.search(ref):
        return ["is not a URI"]
    faults = (
        _check_path(found.path),
        _check_scheme(found, use, rules, setting) or _check_file(found, rules) or _check_names(found, rules),
        _check_host(found, rules, setting),
        _check_container(found, rules, setting),
        _check_prefix(found, rules, setting),
    )
    return [message for message in faults if message is not None]


def parse_ref(ref: str) -> Ref | None:
    """Split a ref into its parts; return None if it is not a URI."""
    parts = URI.fullmatch(ref)
    if parts is None:
        return None
    scheme, authority = parts[1].lower(), unquote(parts[2] or "").rpartition("@")[2]
    port = None
    if scheme == "file":
        authority = ""
    elif scheme != "blob":
        authority, port = _split_port(scheme, authority)
    return Ref(scheme, authority, unquote(parts[3]), port)


def split_host(authority: str) -> tuple[str, int | None] | None:
    """Return the host in lower case and the port (None if not given); None if no client could connect there."""
    found = _HOST.fullmatch(authority)
    if found is None or len(found[1]) > _MAX_HOST_CHARS:
        return None
    port = int(found[2]) if found[2] else None
    if port is not None and not 1 <= port <= _MAX_PORT:
        return None
    if found[1].startswith("["):
        try:
            IPv6Address(found[1][1:-1])
        except ValueError:
            return None
    return found[1].lower(), port


def is_host_allowed(host: str, allowed: Collection[str]) -> bool:
    """Return True if `host` equals an allowed name, or is a subdomain of an allowed `*.example.com`."""
    return host in allowed or any(name.startswith("*.") and host.endswith(name[1:]) for name in allowed)


def is_below(path: str, folders: Sequence[str]) -> bool:
    """Return True if a path is one of the folders or below one, compared by whole segments."""
    return _depth(path, folders) >= 0


def is_plain_path(path: str) -> bool:
    """Return True if services accept a decoded path: no parent segments, backslashes or NUL."""
    return "\0" not in path and "\\" not in path and ".." not in path.split("/")


def has_secret(query: str | None, fragment: str | None) -> bool:
    """Return True if a query or fragment has a parameter named like a signature or a credential."""
    return any(_SIGNED.search(unquote(part)) is not None for part in (query, fragment) if part)


def list_key_files(url: str) -> list[str]:
    """Return the key and certificate files that a connection URL names."""
    query = url.partition("?")[2].partition("#")[0]
    return [value for name, value in parse_qsl(query) if name in TLS_FILE_PARAMETERS]


def check_characters(ref: str) -> str | None:
    """Return the fault in the characters or the length of a URI; None if there is none."""
    if len(ref) > MAX_REF_CHARS:
        return f"is longer than {MAX_REF_CHARS} characters"
    if _CHARACTERS.fullmatch(ref) and ("%" not in ref or not _CONTROL.search(ref)):
        return None
    if _CONTROL.search(ref):
        return "holds control characters"
    if not ref.isascii():
        return "holds characters outside ASCII: percent-encode them"
    return "is not a URI: it holds a character that must be percent-encoded"


def _check_authority(scheme: str, authority: str | None, path: str) -> str | None:
    if authority and "@" in authority:
        return "must not carry a user name or password"
    if scheme == "file":
        return _check_file_form(authority, path)
    if split_host(authority or "") is None or (scheme == "blob" and "[" in (authority or "")):
        return "has no valid container" if scheme == "blob" else "has no valid host"
    if scheme == "blob" and not path:
        return NO_BLOB_PATH
    return None


def _check_file_form(authority: str | None, path: str) -> str | None:
    if authority and authority.lower() != "localhost":
        return "a file reference must not name a host: write file:///path"
    if authority is None or not path.startswith("/") or path.startswith("//"):
        return "a file reference needs an absolute path: write file:///path"
    return None


def _check_path(path: str) -> str | None:
    """Refuse dot segments: services resolve them after this check, which could lead outside the permitted place."""
    if "%" not in path and not _MAY_BE_DOT_SEGMENT.search(path):
        return None
    plain = unquote(path)
    if "%" in plain:  # encoded twice: services differ in how they decode it
        plain = unquote(plain)
    # Some servers drop the part of a segment after a semicolon before they resolve dots.
    segments = (segment.partition(";")[0].strip() for segment in re.split(r"[/\\]", plain))
    if not {".", ".."}.isdisjoint(segments):
        return "must not contain '.' or '..' segments"
    return None


def _check_name(scheme: str, path: str, use: Use) -> str | None:
    """Refuse names that no service could read or write."""
    if scheme not in ("blob", "file"):
        return None
    plain = unquote(path)
    if "\\" in plain:
        return f"a {scheme} reference must not contain a backslash"
    if scheme == "blob" and use == "input" and plain.endswith("/"):
        return "names a folder, which can't be read: name a blob in it"
    return None


def _check_ending(scheme: str, query: str | None, fragment: str | None) -> str | None:
    """Refuse queries and fragments where no service could use them."""
    if scheme in ("blob", "file") and (query is not None or fragment is not None):
        return f"a {scheme} reference has neither a query nor a fragment: percent-encode ? and #"
    return None


def _check_scheme(ref: Ref, use: Use, rules: RefRules, setting: str | None) -> str | None:
    allowed = rules.input_schemes if use == "input" else rules.output_schemes
    if allowed is None or ref.scheme in allowed:
        return None
    named = ", ".join(allowed) or "none"
    return f"the scheme {ref.scheme} is not allowed for {use}s; allowed: {named}{_permits(setting, f'{use}_schemes')}"


def _check_file(ref: Ref, rules: RefRules) -> str | None:
    if ref.scheme != "file":
        return None
    if _depth(ref.path, rules.protected) > _depth(ref.path, rules.reachable):
        return "is a file of Lucius itself"
    if rules.file_roots is not None and not is_below(ref.path, [*rules.file_roots, *rules.reachable]):
        return (
            f"a file reference must lie below {' or '.join(rules.file_roots)} "
            "(`lucius dev` permits the folder it was started in; LUCIUS_FILE_ROOTS names others)"
        )
    return None


def _check_names(ref: Ref, rules: RefRules) -> str | None:
    """Refuse reserved names of blobs and files, and hidden names below the nearest of the file roots.

    If the rules have no file roots, the services' own may lie anywhere: only the last name is certainly below one.
    """
    if ref.scheme not in ("blob", "file"):
        return None
    depth = _depth(ref.path, rules.file_roots or [])
    if ref.scheme == "file" and depth > _depth(ref.path, rules.reachable):
        return find_name_fault(_segments(ref.path)[depth:], allow_hidden=False)
    stored = _stored_at(ref, rules)
    if stored is None:
        return find_name_fault(_segments(ref.path)[-1:], allow_hidden=True)
    return find_name_fault(stored, allow_hidden=True, is_blob=True)


def _check_host(ref: Ref, rules: RefRules, setting: str | None) -> str | None:
    """Compare host and port with the allowed ones; an entry without a port means the scheme's default port."""
    if rules.hosts is None or ref.scheme in ("blob", "file"):
        return None
    full = f"{ref.authority}:{ref.port or DEFAULT_PORTS.get(ref.scheme, '')}"
    if is_host_allowed(ref.place, rules.hosts) or is_host_allowed(full, rules.hosts):
        return None
    return f"the host {ref.place} is not allowed by the policy{_permits(setting, 'hosts')}"


def _check_container(ref: Ref, rules: RefRules, setting: str | None) -> str | None:
    if rules.containers is None:
        return None
    stored = _stored_at(ref, rules)
    if stored is None or (stored and stored[0] in rules.containers):
        return None
    return f"the container {stored[0] if stored else ''} is not allowed by the policy{_permits(setting, 'containers')}"


def _check_prefix(ref: Ref, rules: RefRules, setting: str | None) -> str | None:
    if rules.prefixes is None:
        return None
    if "" in ref.path.split("/")[1:-1] or "\\" in ref.path:
        return "must not contain empty segments or backslashes: the policy has prefixes"
    if any(_has_prefix(ref, rules, prefix) for prefix in rules.prefixes):
        return None
    named = ", ".join(rules.prefixes) or "none"
    return f"is outside the prefixes that the policy permits: {named}{_permits(setting, 'prefixes')}"


def _stored_at(ref: Ref, rules: RefRules) -> list[str] | None:
    """Return the container and path segments of a ref to blob storage; None for any other ref."""
    if ref.scheme == "blob":
        return [ref.authority, *_segments(ref.path)]
    if ref.scheme == "file":
        folder = next((folder for folder in rules.reachable if is_below(ref.path, [folder])), None)
        return None if folder is None else _segments(ref.path)[len(_segments(folder)) :]
    return _segments(ref.path) if _AZURE_STORAGE.fullmatch(ref.authority) else None


def _has_prefix(ref: Ref, rules: RefRules, prefix: str) -> bool:
    """Compare whole segments: container and path, or authority and path if the prefix has a scheme."""
    stored = _stored_at(ref, rules)
    scheme, separator, rest = prefix.partition("://")
    if not separator:
        if stored is None:  # other hosts have no containers
            return False
        scheme, rest, place = ref.scheme, prefix, stored
    elif ref.scheme == "file" and scheme == "blob" and stored is not None:
        scheme, place = ref.scheme, stored
    else:
        place = [*_segments(ref.place), *_segments(ref.path)]
    wanted = _segments(rest)
    if scheme in DEFAULT_PORTS and wanted:
        wanted[0] = wanted[0].removesuffix(f":{DEFAULT_PORTS[scheme]}")
    return scheme == ref.scheme and place[: len(wanted)] == wanted


def _split_port(scheme: str, authority: str) -> tuple[str, int | None]:
    """Return the host in lower case and its port; None for the scheme's default port."""
    host, port = split_host(authority) or (authority.lower(), None)
    return host, None if port == DEFAULT_PORTS.get(scheme) else port


def _segments(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]


def _depth(path: str, folders: Sequence[str]) -> int:
    """Return the number of segments of the deepest folder that contains `path`; -1 if none does."""
    parts = _segments(path)
    around = (segments for segments in map(_segments, folders) if parts[: len(segments)] == segments)
    return max((len(segments) for segments in around), default=-1)


def _permits(setting: str | None, name: str) -> str:
    return f" ({setting}.{name} in the config file permits more)" if setting else ""
