"""Reads `https:` inputs of clients into memory, with limits on size, time and address.

The host name is resolved once, every address it has is checked, and the connection goes to one of those addresses: a
name that resolves differently a moment later changes nothing. Nothing but the ref decides where the connection goes:
redirects are refused, proxies of the environment are not used, and no credentials or cookies are sent. Certificates
are checked against the system's authorities; `SSL_CERT_FILE` names others.

The code blocks, as all of `Files` does: it may be called in a thread, in a step's process or on an event loop.
"""

import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult

import msgspec

from lucius.public_addresses import is_public
from lucius.retry_after import parse_retry_after
from lucius.worker.failure import NonRetryable, StepFailure, Transient, failure_from_status

DEFAULT_TOTAL_SECONDS = 300.0
DEFAULT_IDLE_SECONDS = 30.0
CONNECT_SECONDS = 10.0
CHUNK_BYTES = 64 * 1024
HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "lucius", "Connection": "close"}

Found = tuple[socket.AddressFamily, Any]
"""Address family and socket address."""
Resolve = Callable[[str, int], list[Found]]


class HttpsRules(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on reading `https:` refs."""

    allow_private: bool = False
    """Connect to addresses that are not public, too: loopback, private networks, link-local."""
    total_seconds: float = DEFAULT_TOTAL_SECONDS
    """Limit for the whole read, from the lookup of the name to the last byte."""
    idle_seconds: float = DEFAULT_IDLE_SECONDS
    """Limit without a byte from the peer."""


def look_up(host: str, port: int) -> list[Found]:
    """Resolve a host name as the system does. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def read_https(parts: SplitResult, rules: HttpsRules, max_bytes: int, *, resolve: Resolve = look_up) -> bytes:
    """Return the bytes behind a ref without credentials. Raises StepFailure."""
    deadline = time.monotonic() + rules.total_seconds
    host, port = _host_of(parts)
    shown = parts.geturl()
    try:
        addresses = _resolve_within(lambda: resolve(host, port), host, deadline)
        _refuse_private(addresses, host, rules)
        with closing(_Connection(host, port, addresses, rules.idle_seconds, deadline)) as connection:
            connection.request("GET", _target_of(parts), headers=HEADERS)
            response = connection.getresponse()
            _refuse_status(response, shown)
            return _read_body(response, shown, max_bytes)
    except TimeoutError as error:
        told = (
            f"{shown}: no complete answer within {rules.total_seconds:g} s, or none at all for {rules.idle_seconds:g} s"
        )
        raise Transient("TIMEOUT", told) from error
    except (ssl.SSLEOFError, http.client.IncompleteRead, http.client.RemoteDisconnected) as error:
        raise Transient("CONNECTION_LOST", f"{shown}: the connection broke off") from error
    except ssl.SSLError as error:
        reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
        raise StepFailure("TLS_FAILED", f"{shown}: no trusted TLS connection ({reason})") from error
    except http.client.InvalidURL as error:
        raise NonRetryable("UNSUPPORTED_REF", f"{shown}: {error}") from error
    except (http.client.HTTPException, ValueError) as error:
        raise StepFailure("RESPONSE_UNREADABLE", f"{shown}: the answer is not readable HTTP") from error
    except OSError as error:
        told = f"{shown}: the connection failed ({error.strerror or type(error).__name__})"
        raise Transient("CONNECTION_FAILED", told) from error


def _target_of(parts: SplitResult) -> str:
    """Return path and query; the fragment is not sent."""
    return f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"


def _host_of(parts: SplitResult) -> tuple[str, int]:
    try:
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise NonRetryable("UNSUPPORTED_REF", f"not a URI: {error}") from error
    if not host or not parts.geturl().isascii():
        raise NonRetryable("UNSUPPORTED_REF", "an https ref needs a host name, and holds ASCII characters only")
    if port == 0:
        raise NonRetryable("UNSUPPORTED_REF", "an https ref has a port from 1 to 65535")
    return host, port or 443


def _resolve_within(resolve: Callable[[], list[Found]], host: str, deadline: float) -> list[Found]:
    """Look up a name in a thread: the system's lookup takes no time limit. Raises TimeoutError, StepFailure."""
    outcome: list[list[Found] | Exception] = []

    def work() -> None:
        try:
            outcome.append(resolve())
        except (OSError, UnicodeError) as error:
            outcome.append(error)

    thread = threading.Thread(target=work, name=f"host {host}", daemon=True)
    thread.start()
    thread.join(_left(deadline))
    if not outcome:
        raise TimeoutError
    found = outcome[0]
    if isinstance(found, Exception) or not found:
        raise Transient("NAME_NOT_RESOLVED", f"the name {host} could not be resolved")
    return found


def _refuse_private(addresses: list[Found], host: str, rules: HttpsRules) -> None:
    """Refuse a host if any of its addresses is not public."""
    if rules.allow_private:
        return
    for _, address in addresses:
        if not is_public(ip_address(str(address[0]).partition("%")[0])):
            permits = "LUCIUS_HTTPS_ALLOW_PRIVATE=1, set for the service, permits it"
            raise NonRetryable("FORBIDDEN_REF", f"{host} has an address that is not public; {permits}")


class _TimedSocket(ssl.SSLSocket):
    """Waits for a byte until the idle limit or the deadline, whichever comes first."""

    idle_seconds = DEFAULT_IDLE_SECONDS
    deadline: float | None = None

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        if self.deadline is not None:
            self.settimeout(min(self.idle_seconds, _left(self.deadline)))
        return super().recv_into(*args, **kwargs)


class _BoundedReader(io.BufferedReader):
    """Refuses to read to the end of the stream, which is what a negative chunk size would make of a read."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            raise http.client.HTTPException("a part of the body has a negative size")
        return super().read(size)


class _Response(http.client.HTTPResponse):
    """Takes from the connection at most as many bytes as the caller asks for, ignoring the sizes the host states."""

    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self.fp = _BoundedReader(self.fp.detach())


class _Connection(http.client.HTTPSConnection):
    """Connects to one of the addresses given, and to no other."""

    response_class = _Response

    def __init__(self, host: str, port: int, addresses: list[Found], idle_seconds: float, deadline: float) -> None:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        context.sslsocket_class = _TimedSocket
        super().__init__(host, port, context=context)
        self._tls = context
        self._addresses = addresses
        self._idle_seconds = idle_seconds
        self._deadline = deadline

    def connect(self) -> None:
        plain = self._open()
        try:
            plain.settimeout(min(self._idle_seconds, _left(self._deadline)))
            sock = self._tls.wrap_socket(plain, server_hostname=self.host, suppress_ragged_eofs=False)
        except BaseException:
            plain.close()
            raise
        assert isinstance(sock, _TimedSocket)
        sock.idle_seconds, sock.deadline = self._idle_seconds, self._deadline
        self.sock = sock

    def _open(self) -> socket.socket:
        """Connect to the first address that answers. Raises the last one's OSError."""
        failed: OSError = OSError("no address")
        for family, address in self._addresses:
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.settimeout(min(CONNECT_SECONDS, _left(self._deadline)))
                sock.connect(address)
            except OSError as error:
                sock.close()
                failed = error
            else:
                return sock
        raise failed


def _left(deadline: float) -> float:
    """Return the seconds left. Raises TimeoutError if there are none: a socket would take 0 for "do not wait"."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _refuse_status(response: http.client.HTTPResponse, shown: str) -> None:
    status = response.status
    if status == 200:
        return
    if status in (404, 410):
        raise NonRetryable("INPUT_NOT_FOUND", f"{shown} does not exist: its host answered {status}")
    if status in (401, 403):
        raise NonRetryable("INPUT_FORBIDDEN", f"no permission to read {shown}: its host answered {status}")
    if 300 <= status < 400:
        told = f"{shown} is redirected ({status}), which is not followed: use the final address as the ref"
        raise NonRetryable("INPUT_REDIRECTED", told)
    if status < 300:
        raise NonRetryable("UNSUPPORTED_INPUT", f"{shown}: its host answered {status}, not 200")
    after = parse_retry_after(response.getheader("Retry-After"))
    raise failure_from_status(status, f"{shown}: its host answered {status}", retry_after_seconds=after)


def _read_body(response: http.client.HTTPResponse, shown: str, max_bytes: int) -> bytes:
    encoding = (response.getheader("Content-Encoding") or "identity").lower()
    if encoding != "identity":
        raise NonRetryable("UNSUPPORTED_INPUT", f"{shown}: its host answered with the content encoding {encoding[:32]}")
    if response.length is not None and response.length > max_bytes:
        raise NonRetryable("INPUT_TOO_LARGE", f"{shown} has {response.length} bytes, the limit is {max_bytes}")
    data = bytearray()
    while chunk := response.read(CHUNK_BYTES):
        data += chunk
        if len(data) > max_bytes:
            raise NonRetryable("INPUT_TOO_LARGE", f"{shown} has more than {max_bytes} bytes, the limit")
    if response.length:  # http.client takes an early end of a body with a known length for its end
        raise Transient("CONNECTION_LOST", f"{shown}: {response.length} bytes are missing at the end")
    return bytes(data)
