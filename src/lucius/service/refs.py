"""Whether a command's references and callback URLs are well formed and within the policy.

Lucius never opens a reference itself, but it stores it, shows it and hands it to services: so it must not carry
a secret, and must not say one thing to the policy and another to the service that resolves it.
"""

import re
from collections.abc import Collection
from urllib.parse import unquote

from lucius.contract import ClientCallbackUrls, Fault
from lucius.ports.config import RefPolicy

MAX_LENGTH = 4096

# RFC 3986 in outline; what each part may hold is checked by _CHARACTERS.
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL)
_CHARACTERS = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")
# Labels as DNS has them: a resolver may raise something of its own for an empty or an overlong one.
_LABELS = r"(?=[A-Za-z0-9])[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*(?<=[A-Za-z0-9])"
_HOST = re.compile(rf"({_LABELS}|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?")
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
_AZURE_BLOB = ".blob.core.windows.net"


def check_refs(input_ref: str, output_ref: str, policy: RefPolicy) -> list[Fault]:
    """The faults of both references; none means that they may be used."""
    return check_ref("/input_ref", input_ref, policy) + check_ref("/output_ref", output_ref, policy)


def check_ref(pointer: str, ref: str, policy: RefPolicy) -> list[Fault]:
    """The faults of one reference, each with what to do about it."""
    parts = _URI.fullmatch(ref)
    message = _characters(ref)
    if message is None and parts is None:
        message = "is not a URI: it needs a scheme, as in blob://container/path"
    if message is not None or parts is None:
        return [Fault(pointer, message or "is not a URI")]
    scheme, authority, path, query, fragment = parts.groups()
    found = (
        _scheme(scheme.lower(), policy),
        _authority(scheme.lower(), authority, path, policy),
        _path(path),
        _secrets(query, fragment),
    )
    return [Fault(pointer, message) for message in found if message is not None]


def check_callback_urls(
    urls: ClientCallbackUrls | None, allowed_hosts: Collection[str], job_hosts: Collection[str] | None = None
) -> list[Fault]:
    """`ack` and `result` would carry our tokens elsewhere, so their hosts must be allowed; `job` carries none.

    But the engine itself goes there: without a list to any host, by https; with one only to those on it.
    """
    if urls is None:
        return []
    faults = []
    for name, url in (("ack", urls.ack), ("result", urls.result), ("job", urls.job)):
        if url is None:
            continue
        message = _job_callback(url, job_hosts) if name == "job" else _callback(url, allowed_hosts)
        if message is not None:
            faults.append(Fault(f"/callback_urls/{name}", message))
    return faults


def _callback(url: str, allowed_hosts: Collection[str] | None) -> str | None:
    if message := _characters(url):
        return message
    parts = _URI.fullmatch(url)
    if parts is None or parts[1].lower() not in ("http", "https"):
        return "must be an http or https URL"
    if "@" in (parts[2] or ""):
        return "must not carry a user name or password"
    host = _HOST.fullmatch(parts[2] or "")
    if host is None:
        return "has no valid host"
    if allowed_hosts is not None and not host_allowed(host[1].lower(), allowed_hosts):
        return f"callbacks to the host {host[1]} are not allowed by the policy"
    return None


def _job_callback(url: str, hosts: Collection[str] | None) -> str | None:
    if message := _callback(url, None):
        return message
    scheme, _, rest = url.lower().partition("://")
    authority = re.split(r"[/?#]", rest)[0]
    found = _HOST.fullmatch(authority)
    host, port = (found[1], found[2]) if found else ("", None)
    if hosts is None:
        return None if scheme == "https" else "must be an https URL"
    port = port or ("443" if scheme == "https" else "80")
    if host_allowed(host, hosts) or host_allowed(f"{host}:{port}", hosts):
        return None
    return f"callbacks to the host {host} are not allowed by the policy"


def host_allowed(host: str, allowed: Collection[str]) -> bool:
    """Exact names, or `*.example.com` for every name below it."""
    return host in allowed or any(name.startswith("*.") and host.endswith(name[1:]) for name in allowed)


def _characters(ref: str) -> str | None:
    if len(ref) > MAX_LENGTH:
        return f"is longer than {MAX_LENGTH} characters"
    if _CHARACTERS.fullmatch(ref) and ("%" not in ref or not _CONTROL.search(ref)):
        return None
    if _CONTROL.search(ref):
        return "holds control characters"
    if not ref.isascii():
        return "holds characters outside ASCII: percent-encode them"
    return "is not a URI: it holds a character that must be percent-encoded"


def _scheme(scheme: str, policy: RefPolicy) -> str | None:
    if scheme in policy.schemes:
        return None
    return f"the scheme {scheme} is not allowed; allowed: {', '.join(policy.schemes)}"


def _authority(scheme: str, authority: str | None, path: str, policy: RefPolicy) -> str | None:
    if authority and "@" in authority:
        return "must not carry a user name or password"
    if scheme == "file":
        return _file(authority, path)
    found = _HOST.fullmatch(authority or "")
    if found is None:
        return "has no valid container" if scheme == "blob" else "has no valid host"
    host = found[1].lower()
    if scheme == "blob":
        return _container(found[1], policy)
    if policy.hosts is not None and not host_allowed(host, policy.hosts):
        return f"the host {host} is not allowed by the policy"
    if host.endswith(_AZURE_BLOB):
        return _container(unquote(path).strip("/").partition("/")[0], policy)
    return None


def _file(authority: str | None, path: str) -> str | None:
    if authority and authority.lower() != "localhost":
        return "a file reference must not name a host: write file:///path"
    if authority is None or not path.startswith("/") or path.startswith("//"):
        return "a file reference needs an absolute path: write file:///path"
    return None


def _container(container: str, policy: RefPolicy) -> str | None:
    if policy.containers is None or container in policy.containers:
        return None
    return f"the container {container} is not allowed by the policy"


def _path(path: str) -> str | None:
    """Dots are resolved by whoever opens the reference, after we looked: they could leave the allowed container."""
    if "." not in path and "%" not in path:
        return None
    plain = unquote(path)
    if "%" in plain:  # encoded twice: what a service makes of it can't be known here
        plain = unquote(plain)
    if ".." in re.split(r"[/\\]", plain):
        return "must not contain '..' segments"
    return None


def _secrets(query: str | None, fragment: str | None) -> str | None:
    for part in (query, fragment):
        if part and _SIGNED.search(unquote(part)):
            return "must not carry a signature or a token; services use their own credentials"
    return None
