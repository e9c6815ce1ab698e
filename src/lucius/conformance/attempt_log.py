"""Log of the played orchestrator's attempts and of the callbacks received for them, with its answers.

The rules are those of the real orchestrator: a callback must carry the token of the attempt it names (401, 403), fit
the contract (422), and name the step's current attempt (409 STALE); then it is APPLIED, a DUPLICATE of what was
applied, or LATE. Every callback is kept with its time and its answer.
"""

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from lucius.conformance.directives import timestamp_in
from lucius.contract import AckCallback, HeartbeatCallback, ResultCallback

Kind = Literal["ack", "heartbeat", "result"]
KINDS: tuple[Kind, ...] = ("ack", "heartbeat", "result")
MODELS: dict[str, type[AckCallback]] = {"ack": AckCallback, "heartbeat": HeartbeatCallback, "result": ResultCallback}
LATE_SUCCESS_SECONDS = 5.0  # time for a success after a lost lease, until the next attempt begins
TYPE_ROOT = "https://lucius.dev/problems/"

now = time.monotonic


class Key(NamedTuple):
    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str


class CallbackResponse(Struct, frozen=True):
    status: int
    body: dict[str, Any]
    retry_after: float | None = None

    @property
    def disposition(self) -> str:
        return str(self.body.get("disposition") or "")


class ReceivedCallback(Struct, kw_only=True):
    """A callback as it was received, with its answer."""

    at: float
    kind: Kind
    token: str
    body: Any
    request: int
    url: str = ""
    """URL it was sent to; empty if not checked."""
    answer: CallbackResponse | None = None
    answered_at: float | None = None
    refusal: CallbackResponse | None = None
    """How it violates the contract, regardless of the answer that a case chose."""

    @property
    def status(self) -> int:
        return self.answer.status if self.answer else 0

    @property
    def disposition(self) -> str:
        return self.answer.disposition if self.answer else ""

    @property
    def content(self) -> bytes:
        """Canonical encoding of a RESULT's content, for comparing two RESULTs."""
        names = ("status", "result", "artifact_refs", "failure_class", "error", "retry_after_seconds")
        content = {name: self.body.get(name) for name in names} if isinstance(self.body, dict) else self.body
        return msgspec.json.encode(content, order="deterministic")


class PlayedAttempt(Struct, kw_only=True, eq=False):
    directive: dict[str, Any]
    key: Key
    token: str
    ack_seconds: float
    lease_seconds: float
    handed_over: list[float] = field(default_factory=list)
    callbacks: list[ReceivedCallback] = field(default_factory=list)
    acked_at: float | None = None
    lease_until: float | None = None
    ended_by: ReceivedCallback | None = None
    fenced: bool = False
    cancel_requested: bool = False
    is_malformed: bool = False
    """True if its directive is sent malformed: no callback about it counts as a fault."""
    answers: Callable[[ReceivedCallback], CallbackResponse | None] | None = None
    """Answer of a case that replaces the default one; returning None keeps the default."""

    def of(self, kind: Kind) -> list[ReceivedCallback]:
        return [callback for callback in self.callbacks if callback.kind == kind]

    @property
    def acks(self) -> list[ReceivedCallback]:
        return self.of("ack")

    @property
    def heartbeats(self) -> list[ReceivedCallback]:
        return self.of("heartbeat")

    @property
    def results(self) -> list[ReceivedCallback]:
        return self.of("result")

    @property
    def first_handed_over(self) -> float:
        return self.handed_over[0]

    @property
    def ack_due(self) -> float:
        return self.handed_over[0] + self.ack_seconds


class AttemptLog:
    """Attempts and callbacks of one case. `on_change` is called after each change."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.attempts: dict[Key, PlayedAttempt] = {}
        self.received: list[ReceivedCallback] = []
        self.on_implied_hand_over: Callable[[PlayedAttempt], None] = lambda _: None
        """Called if a callback arrives before the hand-over of its attempt was observed."""
        self._by_token: dict[str, PlayedAttempt] = {}
        self._on_change = on_change

    def add(self, directive: dict[str, Any], ack_seconds: float) -> PlayedAttempt:
        key = Key(directive["jobId"], directive["stepId"], directive["attempt_no"], directive["lease_id"])
        attempt = PlayedAttempt(
            directive=directive,
            key=key,
            token=directive["callback_token"],
            ack_seconds=ack_seconds,
            lease_seconds=directive["lease_seconds"],
        )
        self.attempts[key] = attempt
        self._by_token[attempt.token] = attempt
        return attempt

    def handed_over(self, attempt: PlayedAttempt) -> None:
        attempt.handed_over.append(now())
        self._on_change()

    def refuse_unprocessed(self, callback: ReceivedCallback, answer: CallbackResponse) -> None:
        """Record a callback that the server refuses without processing it, if a case asks for that."""
        self._record(callback)
        attempt = self._by_token.get(callback.token)
        if attempt is not None and callback.refusal is None:
            attempt.callbacks.append(callback)
        callback.answer = answer
        self._on_change()

    def receive(self, callback: ReceivedCallback) -> CallbackResponse:
        self._record(callback)
        callback.answer = self._answer(callback)
        self._on_change()
        return callback.answer

    def restart_leases(self) -> None:
        """Restart all leases after the orchestrator's downtime, so that work done meanwhile is not fenced."""
        for attempt in self.attempts.values():
            if attempt.lease_until is not None:
                attempt.lease_until = now() + attempt.lease_seconds

    def faults(self) -> list[str]:
        """Return descriptions of the callbacks that violate the contract."""
        malformed_tokens = {attempt.token for attempt in self.attempts.values() if attempt.is_malformed}
        return [
            f"{'an' if callback.kind == 'ack' else 'a'} {callback.kind.upper()} {callback.refusal.body['detail']}"
            for callback in self.received
            if callback.refusal and callback.token not in malformed_tokens
        ]

    def _record(self, callback: ReceivedCallback) -> None:
        self.received.append(callback)
        attempt = self._by_token.get(callback.token)
        if attempt is not None and not attempt.handed_over:
            self.on_implied_hand_over(attempt)
        callback.refusal = self._refusal(callback)

    def _refusal(self, callback: ReceivedCallback) -> CallbackResponse | None:
        attempt = self._by_token.get(callback.token)
        if attempt is None:
            token = f"the token {callback.token[:8]}…, which no directive carried" if callback.token else "no token"
            return problem(401, "INVALID_CALLBACK_TOKEN", f"came with {token}")
        if not isinstance(callback.body, dict):
            return problem(422, "INVALID_CALLBACK", "is not a JSON object")
        known = {member: value for member, value in callback.body.items() if value is not None}
        try:
            named = msgspec.convert(known, MODELS[callback.kind])
        except msgspec.ValidationError as error:
            return problem(422, "INVALID_CALLBACK", f"does not fit the contract: {error}")
        if wrong := _mismatch(named, attempt):
            return problem(403, "CALLBACK_TOKEN_MISMATCH", wrong)
        wanted = attempt.directive["callback_urls"][callback.kind]
        if _came_to_its_url(callback.url, wanted):
            return None
        return problem(404, "NOT_FOUND", f"came to {callback.url}, and its directive's callback_urls name {wanted}")

    def _answer(self, callback: ReceivedCallback) -> CallbackResponse:
        if callback.refusal is not None:
            return callback.refusal
        attempt = self._by_token[callback.token]
        attempt.callbacks.append(callback)
        response = attempt.answers(callback) if attempt.answers else None
        return response or _applied(attempt, callback)


def _came_to_its_url(url: str, wanted: str) -> bool:
    """Return whether a callback came to its URL; the batch route stands for the orchestrator's own callback routes."""
    root = wanted.rpartition("/")[0]
    return url in ("", wanted) or (url == f"{root}:batch" and root.endswith("/v1/callbacks"))


def _mismatch(named: AckCallback, attempt: PlayedAttempt) -> str:
    named_key = (named.jobId, named.stepId, named.attempt_no, named.lease_id, named.tenant_id)
    expected_key = (*attempt.key, attempt.directive["tenant_id"])
    members = ("jobId", "stepId", "attempt_no", "lease_id", "tenant_id")
    wrong = [
        f"{member} {value!r}"
        for member, value, want in zip(members, named_key, expected_key, strict=True)
        if value != want
    ]
    if not wrong:
        return ""
    return f"came with the token of {attempt.directive['message_id']} and names another {', '.join(wrong)}"


def _applied(attempt: PlayedAttempt, callback: ReceivedCallback) -> CallbackResponse:
    if attempt.fenced:
        return stale(attempt)
    if attempt.ended_by is not None:
        return _after_result(attempt, callback)
    if _has_missed_deadline(attempt, callback):
        return answer(attempt, "LATE", timestamp_in(LATE_SUCCESS_SECONDS))
    already_acked = callback.kind == "ack" and attempt.acked_at is not None
    if attempt.acked_at is None:
        attempt.acked_at = callback.at  # heartbeat and RESULT imply pickup
    attempt.lease_until = callback.at + attempt.lease_seconds
    if callback.kind == "result":
        attempt.ended_by = callback
        return answer(attempt, "APPLIED", None)
    return answer(attempt, "DUPLICATE" if already_acked else "APPLIED", timestamp_in(attempt.lease_seconds))


def _after_result(attempt: PlayedAttempt, callback: ReceivedCallback) -> CallbackResponse:
    assert attempt.ended_by is not None
    is_duplicate = callback.kind == "ack" or (
        callback.kind == "result" and callback.content == attempt.ended_by.content
    )
    return answer(attempt, "DUPLICATE" if is_duplicate else "LATE", None)


def _has_missed_deadline(attempt: PlayedAttempt, callback: ReceivedCallback) -> bool:
    """Return whether the callback missed the ACK deadline or the lease; a success never does while it is current."""
    if callback.kind == "result" and callback.body.get("status") == "SUCCEEDED":
        return False
    if attempt.acked_at is None and not attempt.handed_over:
        return False  # only malformed copies of its directive were handed over, and the service works on one
    until = attempt.lease_until if attempt.acked_at is not None else attempt.ack_due
    return until is not None and callback.at > until


def answer(attempt: PlayedAttempt, disposition: str, lease_expires_at: str | None) -> CallbackResponse:
    body = {
        "disposition": disposition,
        "lease_expires_at": lease_expires_at,
        "cancel_requested": attempt.cancel_requested,
    }
    return CallbackResponse(200, body)


def stale(attempt: PlayedAttempt) -> CallbackResponse:
    detail = "another attempt or lease of this step is current; stop working on this one"
    return problem(409, "STALE_CALLBACK", detail, disposition="STALE", jobId=attempt.key.job_id)


def problem(status: int, code: str, detail: str, retry_after: float | None = None, **more: Any) -> CallbackResponse:
    body = {
        "type": TYPE_ROOT + code.lower().replace("_", "-"),
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "code": code,
        "detail": detail,
        **more,
    }
    if retry_after is not None:
        body["retry_after_seconds"] = retry_after
    return CallbackResponse(status, body, retry_after)
