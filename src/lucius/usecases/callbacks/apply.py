"""Applies ACK, heartbeat and RESULT callbacks: authenticates them, then lets the core decide if they count."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from lucius import contract
from lucius.contract import AckCallback, CallbackAnswer, Fault, HeartbeatCallback, ResultCallback
from lucius.core.decide.values import MAX_VALUE_BYTES
from lucius.core.model.decision import CallbackReply, Decision, Refused, Reply
from lucius.core.model.inputs import Ack, Failed, Heartbeat, Succeeded
from lucius.core.model.progress import usable_total
from lucius.core.model.records import Attempt, ErrorInfo, ProgressCounts
from lucius.core.model.routing import normalise_tenant
from lucius.core.model.statuses import Disposition, FailureClass
from lucius.core.policies.failure_classes import failure_class
from lucius.ports.clock import Clock
from lucius.ports.engine import Engine
from lucius.ports.readers import HistoryReader, JobReader
from lucius.ports.sightings import Sender
from lucius.usecases.callbacks.error_messages import redacted
from lucius.usecases.callbacks.tokens import Claims, TokenSigner
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.json_values import MAX_DEPTH, fault_of, too_deep
from lucius.usecases.timestamps import timestamp_or_none

MAX_RESULT_BYTES = MAX_VALUE_BYTES
MAX_EXTRA_BYTES = 16 * 1024
MAX_BATCH_CALLBACKS = 10  # a decision touches a few dozen rows at most
UNNAMED = Sender()

CallbackInput = Ack | Heartbeat | Succeeded | Failed


class VerifiedCallback(Struct, frozen=True):
    """An authenticated callback, ready for the core."""

    job_id: str
    callback: CallbackInput


_MODELS: dict[str, type[AckCallback]] = {"ack": AckCallback, "heartbeat": HeartbeatCallback, "result": ResultCallback}
_KNOWN = {
    kind: frozenset(field.name for field in msgspec.structs.fields(model)) | {"type", "callback_token"}
    for kind, model in _MODELS.items()
}


class Callbacks:
    """Verifies callbacks of services and applies them to jobs."""

    def __init__(
        self,
        engine: Engine,
        jobs: JobReader,
        history: HistoryReader,
        signer: TokenSigner,
        clock: Clock,
        late_window_ms: int,
        note_callback: Callable[[str, str, str], None],
    ) -> None:
        """`note_callback` is called with the service, the instance and the agent of applied callbacks."""
        self._engine = engine
        self._jobs = jobs
        self._history = history
        self._signer = signer
        self._clock = clock
        self._late_window_ms = late_window_ms
        self._note_callback = note_callback

    def verify(self, token: str) -> Claims:
        """Return a token's claims, before the rest of the request is read. Raises Rejected for a foreign token."""
        return self._signer.verify(token)

    async def parse(self, kind: str, body: dict[str, Any], claims: Claims) -> VerifiedCallback:
        """Parse a callback that came with a genuine token.

        Raises Rejected if it is malformed, names another attempt, or comes after the token's and the lease's expiry.
        """
        callback = _parse(kind, body)
        _match(claims, callback)
        if claims.expires_at < self._clock.now() and not await self._still_leased(claims):
            raise Rejected(RejectCode.CALLBACK_TOKEN_EXPIRED, "the attempt this token was made for ended too long ago")
        return VerifiedCallback(callback.jobId, _to_input(kind, callback, body))

    async def fail_oversized(self, claims: Claims, sender: Sender = UNNAMED) -> None:
        """Fail the attempt for good, because its service sent a result too large to read. Ignores expired tokens."""
        if claims.expires_at < self._clock.now() and not await self._still_leased(claims):
            return
        message = "the callback with the result was too large to be read; write large output to the workspace"
        failed = Failed(
            step_id=claims.step_id,
            attempt_no=claims.attempt_no,
            lease_id=claims.lease_id,
            failure_class=FailureClass.NON_RETRYABLE,
            error=ErrorInfo("RESULT_TOO_LARGE", message),
        )
        await self.apply(claims.job_id, [failed], sender)

    async def _still_leased(self, claims: Claims) -> bool:
        """Return True if the attempt's lease is current or ended within the late window.

        Heartbeats extend a lease beyond the expiry that was signed into the token.
        """
        attempt = await self._attempt(claims)
        if attempt is None:
            return False
        held_until = max(attempt.lease_expires_at or 0, attempt.ack_deadline or 0)
        return held_until + self._late_window_ms > self._clock.now()

    async def _attempt(self, claims: Claims) -> Attempt | None:
        """Return the attempt that a token was made for, current or fenced; None if it is not found."""
        view = await self._jobs.job(claims.job_id)
        step = view.steps.get(claims.step_id) if view else None
        if step is None or step.attempt.lease_id == claims.lease_id:
            return step.attempt if step else None
        ended = await self._history.attempts(claims.job_id)
        return next((entry.attempt for entry in ended if entry.attempt.lease_id == claims.lease_id), None)

    async def apply(
        self, job_id: str, callbacks: list[CallbackInput], sender: Sender = UNNAMED
    ) -> list[CallbackAnswer | Rejected]:
        """Apply callbacks about one step in order, MAX_BATCH_CALLBACKS per commit, and return an answer for each."""
        answers: list[CallbackAnswer | Rejected] = []
        for i in range(0, len(callbacks), MAX_BATCH_CALLBACKS):
            part = callbacks[i : i + MAX_BATCH_CALLBACKS]
            decision = await self._engine.apply(job_id, part, part[0].step_id)
            if service := _applied_service(part[0].step_id, decision):
                self._note_callback(service, *sender)
            answers.extend(_answer(reply, job_id) for reply in decision.replies)
        return answers


def _applied_service(step_id: str, decision: Decision) -> str:
    """Return the service of the step if a callback about it was applied; else an empty text."""
    if not any(_is_applied(reply) for reply in decision.replies):
        return ""
    return next((step.service for step in decision.steps if step.step_id == step_id), "")


def _is_applied(reply: Reply) -> bool:
    return isinstance(reply, CallbackReply) and reply.disposition is Disposition.APPLIED


def _parse(kind: str, body: dict[str, Any]) -> AckCallback:
    known = {name: value for name, value in body.items() if value is not None}
    try:
        return msgspec.convert(known, _MODELS[kind])
    except msgspec.ValidationError as error:
        fault = fault_of(str(error), kind=_MODELS[kind])
        raise Rejected(RejectCode.INVALID_CALLBACK, f"{fault.pointer}: {fault.message}", [fault]) from None


def _match(claims: Claims, callback: AckCallback) -> None:
    claimed = (
        normalise_tenant(callback.tenant_id),
        callback.jobId,
        callback.stepId,
        callback.attempt_no,
        callback.lease_id,
    )
    if claimed != (claims.tenant_id, claims.job_id, claims.step_id, claims.attempt_no, claims.lease_id):
        raise Rejected(
            RejectCode.CALLBACK_TOKEN_MISMATCH,
            "the token was made for another tenant, job, step, attempt or lease than the body names",
        )


def _to_input(kind: str, callback: AckCallback, body: dict[str, Any]) -> CallbackInput:
    extra = _extra(kind, body)
    match callback:
        case ResultCallback():
            return _result(callback, extra)
        case HeartbeatCallback():
            progress = callback.progress
            return Heartbeat(
                step_id=callback.stepId,
                attempt_no=callback.attempt_no,
                lease_id=callback.lease_id,
                extra=extra,
                progress=progress if isinstance(progress, float) else None,
                counts=_counts(progress) if isinstance(progress, contract.ProgressCounts) else None,
            )
        case _:
            return Ack(step_id=callback.stepId, attempt_no=callback.attempt_no, lease_id=callback.lease_id, extra=extra)


def _counts(progress: contract.ProgressCounts) -> ProgressCounts:
    """Convert counts; drop unprintable characters of the unit, and a total that is below what is done."""
    unit = "".join(character for character in progress.unit if character.isprintable())
    return ProgressCounts(progress.done, usable_total(progress), unit)


def _result(callback: ResultCallback, extra: dict[str, Any]) -> Succeeded | Failed:
    if callback.status == "SUCCEEDED":
        if (problem := _unfit(callback.result, MAX_RESULT_BYTES, "the result")) is not None:
            return _unusable(callback, ErrorInfo(*problem), extra)
        return Succeeded(
            step_id=callback.stepId,
            attempt_no=callback.attempt_no,
            lease_id=callback.lease_id,
            extra=extra,
            result=callback.result,
            artifact_refs=callback.artifact_refs or [],
        )
    error = callback.error
    retry_after = callback.retry_after_seconds
    return Failed(
        step_id=callback.stepId,
        attempt_no=callback.attempt_no,
        lease_id=callback.lease_id,
        extra=extra,
        failure_class=failure_class(callback.failure_class, callback.status, error.code if error else None),
        error=ErrorInfo(error.code, redacted(error.message))
        if error
        else ErrorInfo("UNSPECIFIED", "the service gave no reason"),
        retry_after_ms=round(retry_after * 1000) if retry_after is not None else None,
    )


def _unusable(callback: ResultCallback, error: ErrorInfo, extra: dict[str, Any]) -> Failed:
    """Return a final failure for a result that a job can't carry: repeating the work would not change it."""
    return Failed(
        step_id=callback.stepId,
        attempt_no=callback.attempt_no,
        lease_id=callback.lease_id,
        extra=extra,
        failure_class=FailureClass.NON_RETRYABLE,
        error=error,
    )


def _extra(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return unknown fields as they came, for the service's operators. Raises Rejected if they are too large."""
    if len(body) <= 5:
        return {}
    extra = {name: value for name, value in body.items() if name not in _KNOWN[kind]}
    if extra:
        _bounded(extra, MAX_EXTRA_BYTES, "")
    return extra


def _bounded(value: Any, limit: int, pointer: str) -> None:
    if (problem := _unfit(value, limit, "the extra fields together")) is not None:
        raise Rejected(RejectCode.INVALID_CALLBACK, problem[1], [Fault(pointer, problem[1])])


def _unfit(value: Any, limit: int, what: str) -> tuple[str, str] | None:
    """Return an error code and a message if a value is too large or too deep for a job; None otherwise."""
    if value is None:
        return None
    encoded = msgspec.json.encode(value)
    if len(encoded) > limit:
        size = f"may have {limit} bytes of JSON and has {len(encoded)}"
        return "RESULT_TOO_LARGE", f"{what} {size}; write large output to the workspace"
    if encoded.count(b"{") + encoded.count(b"[") > MAX_DEPTH and too_deep(value):
        return "RESULT_TOO_DEEP", f"{what} may be nested {MAX_DEPTH} levels deep"
    return None


def _answer(reply: Reply, job_id: str) -> CallbackAnswer | Rejected:
    match reply:
        case CallbackReply(disposition=Disposition.STALE):
            return Rejected(
                RejectCode.STALE_CALLBACK,
                "another attempt or lease of this step is current; stop working on this one",
                job_id=job_id,
                disposition=str(reply.disposition),
            )
        case CallbackReply():
            return CallbackAnswer(
                disposition=reply.disposition.value,
                lease_expires_at=timestamp_or_none(reply.lease_expires_at),
                cancel_requested=reply.cancel_requested,
            )
        case Refused(code=code, message=message):
            return Rejected(RejectCode(code), message, job_id=job_id)
        case _:
            raise AssertionError(f"a callback was answered with {reply!r}")
