"""Keeps leases alive while the event loop can't: an async step that blocks must not lose everybody's work.

A thread watches whether the loop still turns. While it does not, the thread sends the heartbeats itself, in batches and
without looking at the answers: once the loop turns again, its own heartbeats learn what there is to learn. Code that
also keeps the interpreter's lock stops this thread too; such steps belong into a process.
"""

import asyncio
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from types import TracebackType
from typing import Self

import structlog

from lucius.worker.attempt import Attempt
from lucius.worker.callbacks import BATCH_LIMIT, Callback, batch_url, heartbeat_body, trace_headers
from lucius.worker.context import names_of

log: structlog.stdlib.BoundLogger = structlog.get_logger()

TICK_SECONDS = 0.25
STALLED_SECONDS = 1.0
POST_SECONDS = 5.0
MOST_LOGGED = 5


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token is for this address only."""

    def redirect_request(self, *_: object) -> None:
        return None


class Lifeline:
    """A context manager around the life of a service process."""

    def __init__(
        self,
        base_url: str,
        attempts: Callable[[], Sequence[Attempt]],
        on_stall: Callable[[], None] = lambda: None,
    ) -> None:
        self._base_url = base_url.rstrip("/")
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
            self._beat([attempt for attempt in attempts if _is_due(attempt, sent, stalled)])

    def _tell(self, attempts: Sequence[Attempt]) -> None:
        self._on_stall()
        names = [names_of(attempt.directive) for attempt in attempts[:MOST_LOGGED]]
        advice = "make the step a plain def, which runs in a thread"
        log.warning("the event loop is blocked; a thread keeps leases alive", advice=advice, attempts=names)

    def _beat(self, attempts: Sequence[Attempt]) -> None:
        beats = [_heartbeat(attempt) for attempt in attempts]
        ours = [beat for beat in beats if beat.goes_to(self._base_url)]
        for start in range(0, len(ours), BATCH_LIMIT):
            batch = [beat.as_batch_item() for beat in ours[start : start + BATCH_LIMIT]]
            body = b'{"callbacks":[%s]}' % b",".join(batch)
            self._post(batch_url(self._base_url), body, {}, {"attempts": len(batch)})
        for beat in beats:
            if not beat.goes_to(self._base_url):
                token = {"Authorization": f"Bearer {beat.directive.callback_token}"}
                headers = {**trace_headers(beat.directive), **token}
                self._post(beat.url, beat.body, headers, names_of(beat.directive))

    def _post(self, url: str, body: bytes, headers: dict[str, str], about: dict[str, object]) -> None:
        request = urllib.request.Request(url, data=body, headers={**headers, "Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=POST_SECONDS):
                pass
        except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
            reason = f"{type(error).__name__}: {error}"
            log.warning("heartbeat failed while the loop is blocked", reason=reason, **about)


def _is_due(attempt: Attempt, sent: dict[str, float], stalled: float) -> bool:
    now = time.monotonic()
    directive = attempt.directive
    lease = directive.lease_seconds
    # A step that blocks at once keeps even its ACK from leaving; a heartbeat says as much.
    patience = lease / 4 if attempt.heard or directive.lease_id in sent else 0.0
    if stalled < patience or now - sent.get(directive.lease_id, -lease) < lease / 3:
        return False
    sent[directive.lease_id] = now
    return True


def _heartbeat(attempt: Attempt) -> Callback:
    body = heartbeat_body(attempt.directive, attempt.progress)
    return Callback("heartbeat", attempt.directive, body, now=0.0, expires=0.0, on_delivery=lambda _: None)
