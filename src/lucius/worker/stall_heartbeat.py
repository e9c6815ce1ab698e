"""Heartbeats from a thread while the event loop is blocked, so that a blocking async step does not lose all leases.

A thread watches whether the loop still runs. While it does not, the thread sends the heartbeats itself, in batches and
ignoring the answers: the loop's own heartbeats get them once it runs again. Code that also holds the GIL stops this
thread too; such steps belong in a process.
"""

import asyncio
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from types import TracebackType
from typing import Self
from urllib.error import HTTPError

import structlog

from lucius.worker.attempt import RunningAttempt
from lucius.worker.callbacks import (
    HEADERS_TOO_LARGE,
    MAX_BATCH_CALLBACKS,
    OutgoingCallback,
    batch_headers,
    batch_token,
    batch_url,
    heartbeat_body,
    trace_headers,
)
from lucius.worker.context import log_fields

log: structlog.stdlib.BoundLogger = structlog.get_logger()

TICK_SECONDS = 0.25
STALLED_SECONDS = 1.0
POST_TIMEOUT_SECONDS = 5.0
MAX_LOGGED_ATTEMPTS = 5


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the token is for the original address only."""

    def redirect_request(self, *_: object) -> None:
        return None


class StallHeartbeat:
    """Context manager that watches the event loop from `__enter__` to `__exit__`."""

    def __init__(
        self,
        base_url: str,
        attempts: Callable[[], Sequence[RunningAttempt]],
        on_stall: Callable[[], None] = lambda: None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` go with every heartbeat."""
        self._base_url = base_url.rstrip("/")
        self._attempts = attempts
        self._on_stall = on_stall
        self._headers = headers or {}
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
        self._last_tick = time.monotonic()
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._tick()
        threading.Thread(target=self._watch, name="stall-heartbeat", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        assert self._loop is not None
        self._last_tick = time.monotonic()
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def _watch(self) -> None:
        sent_at: dict[str, float] = {}
        is_logged = False
        while not self._stopped.wait(TICK_SECONDS):
            stalled = time.monotonic() - self._last_tick
            if stalled < STALLED_SECONDS:
                sent_at.clear()
                is_logged = False
                continue
            attempts = self._attempts()
            if attempts and not is_logged:
                self._warn_of_stall(attempts)
                is_logged = True
            self._send_heartbeats([attempt for attempt in attempts if _is_due(attempt, sent_at, stalled)])

    def _warn_of_stall(self, attempts: Sequence[RunningAttempt]) -> None:
        self._on_stall()
        names = [log_fields(attempt.directive) for attempt in attempts[:MAX_LOGGED_ATTEMPTS]]
        advice = "make the step a plain def, which runs in a thread"
        log.warning("the event loop is blocked; a thread keeps leases alive", advice=advice, attempts=names)

    def _send_heartbeats(self, attempts: Sequence[RunningAttempt]) -> None:
        heartbeats = [_heartbeat(attempt) for attempt in attempts]
        batched = [heartbeat for heartbeat in heartbeats if heartbeat.is_addressed_to(self._base_url)]
        for start in range(0, len(batched), MAX_BATCH_CALLBACKS):
            batch = batched[start : start + MAX_BATCH_CALLBACKS]
            body = b'{"callbacks":[%s]}' % b",".join([heartbeat.as_batch_item() for heartbeat in batch])
            token, url = batch_token(batch), batch_url(self._base_url)
            self._post(url, body, token, batch_headers(batch), {"attempts": len(batch)})
        for heartbeat in heartbeats:
            if not heartbeat.is_addressed_to(self._base_url):
                directive = heartbeat.directive
                self._post(
                    heartbeat.url,
                    heartbeat.body,
                    directive.callback_token,
                    trace_headers(directive),
                    log_fields(directive),
                )

    def _post(self, url: str, body: bytes, token: str, trace: dict[str, str], about: dict[str, object]) -> None:
        """POST a heartbeat, and again without the trace if its headers are too large."""
        own = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        headers = {**self._headers, **trace, **own}
        request = urllib.request.Request(url, data=body, headers=headers)
        try:
            with self._opener.open(request, timeout=POST_TIMEOUT_SECONDS):
                pass
        except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
            if trace and isinstance(error, HTTPError) and error.code == HEADERS_TOO_LARGE:
                self._post(url, body, token, {}, about)
                return
            reason = f"{type(error).__name__}: {error}"
            log.warning("heartbeat failed while the loop is blocked", reason=reason, **about)


def _is_due(attempt: RunningAttempt, sent_at: dict[str, float], stalled: float) -> bool:
    now = time.monotonic()
    directive = attempt.directive
    lease = directive.lease_seconds
    # A step that blocks from its start also delays its ACK, which a heartbeat implies.
    grace_seconds = lease / 4 if attempt.is_acknowledged or directive.lease_id in sent_at else 0.0
    if stalled < grace_seconds or now - sent_at.get(directive.lease_id, -lease) < lease / 3:
        return False
    sent_at[directive.lease_id] = now
    return True


def _heartbeat(attempt: RunningAttempt) -> OutgoingCallback:
    body = heartbeat_body(attempt.directive, attempt.progress)
    return OutgoingCallback("heartbeat", attempt.directive, body, now=0.0, expires=0.0, on_delivery=lambda _: None)
