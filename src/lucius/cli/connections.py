"""Limits on connections that uvicorn does not have, for both of its HTTP implementations.

A connection is refused at once if there are too many, in all or from its address. It is cut off with 408 or 431 if the
head or the body of a request takes too long, or the head is too large. Once a request has arrived it may be worked on
for as long as it takes: long polls, pulls and event streams have no deadline here. A client that does not read what it
is sent is cut off without an answer.
"""

import asyncio
import http
import resource
from collections import Counter
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any

import structlog

from lucius.api.problems import MEDIA_TYPE, STATUS, encode_problem, problem_headers
from lucius.bootstrap.settings import Settings
from lucius.observability.metrics import Metrics
from lucius.usecases.errors import RejectCode, Rejected

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Base
else:
    _Base = object

log = structlog.get_logger()

RESERVED_FILES = 512  # for ledger, bus, outbound calls, configuration, and connections just refused
DEFAULT_CONNECTIONS = 4_000
LINGER_SECONDS = 1.0
MAX_LINGERING_CONNECTIONS = 200
RETRY_AFTER_SECONDS = 5
MIN_READ_BYTES = 16_384  # bytes of a large answer that a client must read within each body_timeout
END_OF_HEAD = b"\r\n\r\n"
CLIENT_PREFIX_BITS = 64  # an IPv6 client usually has a whole network of this size


def normalise_address(text: str) -> str:
    """Return the address under which a peer is counted: IPv4 as such, also on an IPv6 socket; IPv6 as its network.

    An address that belongs to this machine alone stays as it is.
    """
    if ":" not in text:
        return text
    address = _parse_address(text)
    if isinstance(address, IPv4Address):
        return str(address)
    if address is None or address.is_loopback or address.is_link_local:
        return text
    return str(IPv6Network((int(address), CLIENT_PREFIX_BITS), strict=False))


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:  # a Unix socket
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


class Connections:
    """Counts open connections, and decides whether one more is taken."""

    def __init__(self, settings: Settings, metrics: Metrics, max_connections: int | None = None) -> None:
        """Take the limit on all connections from `max_connections`, if given, or else from the settings."""
        self.settings = settings
        self._metrics = metrics
        self._max_connections = settings.max_connections if max_connections is None else max_connections
        self.max_lingering = min(MAX_LINGERING_CONNECTIONS, self._max_connections // 2 or MAX_LINGERING_CONNECTIONS)
        self._open = 0
        self._by_address: Counter[str] = Counter()
        self.lingering = 0

    def take(self, peer: str) -> None:
        """Count a connection. Raises Rejected, and then has not counted it."""
        address = normalise_address(peer)
        limit, per_address = self._max_connections, self.settings.max_connections_per_address
        if limit and self._open >= limit:
            detail = "the server has as many connections as LUCIUS_MAX_CONNECTIONS or its limit on open files allows"
            raise Rejected(RejectCode.CONNECTION_LIMIT, detail, retry_after_seconds=RETRY_AFTER_SECONDS)
        if per_address and self._by_address[address] >= per_address and not self._is_proxy(peer):
            detail = (
                f"{address} has as many connections as LUCIUS_MAX_CONNECTIONS_PER_ADDRESS allows; if it is a proxy, "
                "name it in LUCIUS_TRUSTED_PROXIES"
            )
            raise Rejected(RejectCode.ADDRESS_LIMIT, detail, retry_after_seconds=RETRY_AFTER_SECONDS)
        self._open += 1
        self._by_address[address] += 1
        self._metrics.connections.set(self._open)

    def release(self, peer: str) -> None:
        address = normalise_address(peer)
        self._open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        self._metrics.connections.set(self._open)

    def count_refusal(self, code: RejectCode) -> None:
        self._metrics.connections_refused(code).inc()

    def _is_proxy(self, peer: str) -> bool:
        """Return whether many clients come from this address. Called only for addresses at their limit."""
        address = _parse_address(peer)
        return address is None or any(address in network for network in self.settings.trusted_proxies)


class LimitedConnection(_Base):
    """A connection of uvicorn with limits. Mixed into each of its protocol classes."""

    limits: Connections
    _address = ""
    _is_counted = False
    _is_closing = False
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        try:
            self.limits.take(self._address)
        except Rejected as refusal:
            self.transport = transport
            self._cut_off(refusal)
            return
        self._is_counted = True
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.limits.settings.header_timeout, self._on_late_head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_write_timer()
        if self._is_counted:
            self.limits.release(self._address)
            super().connection_lost(exc)

    def eof_received(self) -> None:
        if self._is_closing:
            self.transport.close()
        else:
            super().eof_received()

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if self._is_reading_head() and self._is_head_too_large(data):
            detail = f"the head of a request may have {self.limits.settings.max_header_bytes} bytes"
            self._cut_off(Rejected(RejectCode.HEADERS_TOO_LARGE, detail))
            return
        cycle = self.cycle
        super().data_received(data)
        self._await_the_rest(self.cycle is not cycle)

    def _is_reading_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _is_discarding(self) -> bool:
        """Return whether what arrives may be the rest of a body that was answered before it was read."""
        return self.cycle is not None and self.cycle.response_complete and self.cycle.more_body

    def _is_head_too_large(self, data: bytes) -> bool:
        settings = self.limits.settings
        end = data.find(END_OF_HEAD)
        size = self._head_bytes + (len(data) if end < 0 else end)
        self._head_bytes = size if end < 0 else 0
        limit = settings.max_header_bytes + (settings.max_batch_bytes if self._is_discarding() else 0)
        return size > limit

    def _await_the_rest(self, is_new_request: bool) -> None:
        """Run a timer while part of a request is missing, and none while it is answered."""
        if self._is_reading_head():
            if self._timer is None:
                settings = self.limits.settings
                seconds = settings.body_timeout if self._is_discarding() else settings.header_timeout
                self._timer = self.loop.call_later(seconds, self._on_late_head)
        elif not self.cycle.more_body or getattr(self, "pipeline", None):  # what is queued is read later
            self._stop_timer()
        elif is_new_request or self._timer is None:
            self._stop_timer()
            self._timer = self.loop.call_later(self.limits.settings.body_timeout, self._on_late_body)

    def on_response_complete(self) -> None:
        self._stop_timer()
        self._head_bytes = 0
        super().on_response_complete()
        if not self._is_reading_head():  # the next request was there already
            self._await_the_rest(True)
        elif not self.flow.write_paused:
            self._await_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()
        if self._is_reading_head():
            self._await_reading()

    def _await_reading(self) -> None:
        """Run a timer while the client has something to read: a full buffer, or the rest of a whole answer."""
        self._stop_write_timer()
        if unread := self.transport.get_write_buffer_size():
            self._write_timer = self.loop.call_later(self.limits.settings.body_timeout, self._on_late_reading, unread)

    def _on_late_reading(self, unread_before: int) -> None:
        """Abort a client that does not read; one that reads a large answer slowly goes on.

        `close` would wait for the client to read.
        """
        self._write_timer = None
        unread = self.transport.get_write_buffer_size()
        if not unread or not (self.flow.write_paused or self._is_reading_head()):
            return  # the end of the answer being written restarts the timer
        if unread_before - unread >= MIN_READ_BYTES:
            self._await_reading()
            return
        self.limits.count_refusal(RejectCode.REQUEST_TIMEOUT)
        self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_late_head(self) -> None:
        detail = f"the head of a request did not arrive within {self.limits.settings.header_timeout:g} s"
        self._cut_off(Rejected(RejectCode.REQUEST_TIMEOUT, detail))

    def _on_late_body(self) -> None:
        detail = f"the body of the request did not arrive within {self.limits.settings.body_timeout:g} s"
        self._cut_off(Rejected(RejectCode.REQUEST_TIMEOUT, detail))

    def _cut_off(self, refusal: Rejected) -> None:
        """Answer with the refusal, unless an answer has begun, and close.

        Keeps reading for a moment: a reset would discard the answer.
        """
        self._stop_timer()
        self._is_closing = True
        self.limits.count_refusal(refusal.code)
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if not self._is_discarding() and (cycle is None or cycle.response_complete or not cycle.response_started):
            self.transport.write(encode_refusal(refusal))
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self._linger()

    def _linger(self) -> None:
        if self.limits.lingering >= self.limits.max_lingering or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.limits.lingering += 1
        self.transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._end_linger)

    def _end_linger(self) -> None:
        self.limits.lingering -= 1
        self.transport.abort()


def encode_refusal(refusal: Rejected) -> bytes:
    """Encode a whole HTTP answer as bytes for the wire."""
    status, body = STATUS[refusal.code], encode_problem(refusal)
    headers = {
        "content-type": MEDIA_TYPE,
        "content-length": str(len(body)),
        "connection": "close",
        **problem_headers(refusal),
    }
    lines = [f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}", *(f"{n}: {v}" for n, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def limited_protocol(limits: Connections, implementation: str = "auto") -> type[asyncio.Protocol]:
    """Return the protocol class for uvicorn: on `httptools` where it is installed (extra `fast`), else on `h11`."""
    if implementation == "auto":
        implementation = "httptools" if find_spec("httptools") else "h11"
    module = import_module(f"uvicorn.protocols.http.{implementation}_impl")
    base = module.HttpToolsProtocol if implementation == "httptools" else module.H11Protocol
    return type(f"Limited{base.__name__}", (LimitedConnection, base), {"limits": limits})


def fit_connections(wanted: int) -> int:
    """Return how many connections may be open at once: `wanted`, unless too few files may be open.

    Each connection takes a file; without any left, the ledger, configuration and protocols can't be opened either.
    Raises this process's soft limit on open files where its hard limit permits. 0 wants no limit, and gets the one of
    open files, if there is one.
    """
    files = _raise_open_files((wanted or DEFAULT_CONNECTIONS) + RESERVED_FILES)
    if files == resource.RLIM_INFINITY:
        return wanted
    fitting = max(files - RESERVED_FILES, files // 2)
    if wanted > fitting:
        log.warning(
            "fewer connections than LUCIUS_MAX_CONNECTIONS are accepted: the limit on open files is too low",
            connections=fitting,
            open_files=files,
        )
    return min(wanted or fitting, fitting)


def _raise_open_files(wanted: int) -> int:
    """Raise the soft limit on open files to `wanted` as far as permitted; return the limit, RLIM_INFINITY for none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    with suppress(OSError, ValueError):  # some systems permit less than their hard limit says
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
