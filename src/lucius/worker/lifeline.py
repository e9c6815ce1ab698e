"""Keeps leases alive while the event loop can't: an async step that blocks must not lose everybody's work.

A thread watches whether the loop still turns. While it does not, the thread sends the heartbeats itself, one by one and
without looking at the answers: once the loop turns again, its own heartbeats learn what there is to learn. Code that
also keeps the interpreter's lock stops this thread too; such steps belong into a process.
"""

import asyncio
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import structlog

from lucius.worker.attempt import Attempt
from lucius.worker.callbacks import heartbeat_body, trace_headers
from lucius.worker.context import names_of

log: structlog.stdlib.BoundLogger = structlog.get_logger()

TICK_SECONDS = 0.25
STALLED_SECONDS = 1.0
POST_SECONDS = 5.0
MOST_LOGGED = 5
JSON = {"Content-Type": "application/json"}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token is for this address only."""

    def redirect_request(self, *_: object) -> None:
        return None


class Lifeline:
    """A context manager around the life of a service process."""

    def __init__(self, attempts: Callable[[], Sequence[Attempt]], on_stall: Callable[[], None] = lambda: None) -> None:
        self._attempts = attempts
        self._on_stall = on_stall
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
        self._turned = time.monotonic()
        self._over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._turn()
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        assert self._loop is not None
        self._turned = time.monotonic()
        self._timer = self._loop.call_later(TICK_SECONDS, self._turn)

    def _watch(self) -> None:
        sent: dict[str, float] = {}
        told = False
        while not self._over.wait(TICK_SECONDS):
            stalled = time.monotonic() - self._turned
            if stalled < STALLED_SECONDS:
                sent.clear()
                told = False
                continue
            attempts = self._attempts()
            if attempts and not told:
                self._tell(attempts)
                told = True
            for attempt in attempts:
                self._beat(attempt, sent, stalled)

    def _tell(self, attempts: Sequence[Attempt]) -> None:
        self._on_stall()
        names = [names_of(attempt.directive) for attempt in attempts[:MOST_LOGGED]]
        advice = "make the step a plain def, which runs in a thread"
        log.warning("the event loop is blocked; a thread keeps leases alive", advice=advice, attempts=names)

    def _beat(self, attempt: Attempt, sent: dict[str, float], stalled: float) -> None:
        directive = attempt.directive
        now = time.monotonic()
        lease = directive.lease_seconds
        # A step that blocks at once keeps even its ACK from leaving; a heartbeat says as much.
        patience = lease / 4 if attempt.heard or directive.lease_id in sent else 0.0
        if stalled < patience or now - sent.get(directive.lease_id, -lease) < lease / 3:
            return
        sent[directive.lease_id] = now
        request = urllib.request.Request(
            directive.callback_urls.heartbeat,
            data=heartbeat_body(directive, attempt.progress),
            headers={**trace_headers(directive), "Authorization": f"Bearer {directive.callback_token}", **JSON},
        )
        try:
            with self._opener.open(request, timeout=POST_SECONDS):
                pass
        except (OSError, urllib.error.URLError) as error:
            log.warning("heartbeat failed while the loop is blocked", reason=str(error), **names_of(directive))
