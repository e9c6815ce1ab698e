"""ACK, heartbeat and RESULT: prove who speaks, then let the core judge whether it counts."""

from typing import Any

import msgspec
from msgspec import Struct

from lucius.contract import AckCallback, CallbackAnswer, Fault, HeartbeatCallback, ResultCallback
from lucius.core.classify import failure_class
from lucius.core.decision import CallbackReply, Refused, Reply
from lucius.core.inputs import Ack, Failed, Heartbeat, Succeeded
from lucius.core.model import Attempt, Disposition, ErrorInfo, FailureClass
from lucius.core.routing import normalise_tenant
from lucius.core.values import MAX_VALUE_BYTES
from lucius.ports.clock import Clock
from lucius.ports.ledger import Reader
from lucius.service.errors import RejectCode, Rejected
from lucius.service.jobs import Jobs
from lucius.service.json_values import MAX_DEPTH, fault_of, too_deep
from lucius.service.redact import redacted
from lucius.service.timestamps import timestamp_or_none
from lucius.service.tokens import Claims, TokenSigner

MAX_RESULT_BYTES = MAX_VALUE_BYTES
MAX_EXTRA_BYTES = 16 * 1024
MOST_AT_ONCE = 10  # a decision touches a few dozen rows at most

ServiceSaid = Ack | Heartbeat | Succeeded | Failed


class Spoken(Struct, frozen=True):
    """An authentic callback, ready for the core."""

    job_id: str
    said: ServiceSaid


_MODELS: dict[str, type[AckCallback]] = {"ack": AckCallback, "heartbeat": HeartbeatCallback, "result": ResultCallback}
_KNOWN = {
    kind: frozenset(field.name for field in msgspec.structs.fields(model)) | {"type", "callback_token"}
    for kind, model in _MODELS.items()
}


class Callbacks:
    def __init__(self, jobs: Jobs, reader: Reader, signer: TokenSigner, clock: Clock, late_window_ms: int) -> None:
        self._jobs = jobs
        self._reader = reader
        self._signer = signer
        self._clock = clock
        self._late_window_ms = late_window_ms

    def verify(self, token: str) -> Claims:
        """What a token of ours says, before anything that came with it is looked at. Raises Rejected."""
        return self._signer.verify(token)

    async def hear(self, kind: str, body: dict[str, Any], claims: Claims) -> Spoken:
        """A callback from the bearer of a genuine token. Raises Rejected if it speaks for another attempt."""
        callback = _parse(kind, body)
        _match(claims, callback)
        if claims.expires_at < self._clock.now() and not await self._still_leased(claims):
            raise Rejected(RejectCode.CALLBACK_TOKEN_EXPIRED, "the attempt this token was made for ended too long ago")
        return Spoken(callback.jobId, _said(kind, callback, body))

    async def end_unheard(self, claims: Claims) -> None:
        """The bearer of this token sent a result too large to be read: the attempt fails for good, with that reason."""
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
        await self.apply(claims.job_id, [failed])

    async def _still_leased(self, claims: Claims) -> bool:
        """Heartbeats carry a lease past what the token foresaw; the token lives as long as the lease and a window."""
        attempt = await self._attempt(claims)
        if attempt is None:
            return False
        held_until = max(attempt.lease_expires_at or 0, attempt.ack_deadline or 0)
        return held_until + self._late_window_ms > self._clock.now()

    async def _attempt(self, claims: Claims) -> Attempt | None:
        """The attempt a token was made for, current or fenced."""
        view = await self._reader.job(claims.job_id)
        step = view.steps.get(claims.step_id) if view else None
        if step is None or step.attempt.lease_id == claims.lease_id:
            return step.attempt if step else None
        ended = await self._reader.attempts(claims.job_id)
        return next((entry.attempt for entry in ended if entry.attempt.lease_id == claims.lease_id), None)

    async def apply(self, job_id: str, said: list[ServiceSaid]) -> list[CallbackAnswer | Rejected]:
        """What a service said about one step, in order, in one commit unless it is much; each answered on its own."""
        answers: list[CallbackAnswer | Rejected] = []
        for i in range(0, len(said), MOST_AT_ONCE):
            decision = await self._jobs.apply(job_id, said[i : i + MOST_AT_ONCE], said[i].step_id)
            answers.extend(_answer(reply, job_id) for reply in decision.replies)
        return answers


def _parse(kind: str, body: dict[str, Any]) -> AckCallback:
    known = {name: value for name, value in body.items() if value is not None}
    try:
        return msgspec.convert(known, _MODELS[kind])
    except msgspec.ValidationError as error:
        fault = fault_of(str(error))
        raise Rejected(RejectCode.INVALID_CALLBACK, f"{fault.pointer}: {fault.message}", [fault]) from None


def _match(claims: Claims, callback: AckCallback) -> None:
    spoken_for = (
        normalise_tenant(callback.tenant_id),
        callback.jobId,
        callback.stepId,
        callback.attempt_no,
        callback.lease_id,
    )
    if spoken_for != (claims.tenant_id, claims.job_id, claims.step_id, claims.attempt_no, claims.lease_id):
        raise Rejected(
            RejectCode.CALLBACK_TOKEN_MISMATCH,
            "the token was made for another tenant, job, step, attempt or lease than the body names",
        )


def _said(kind: str, callback: AckCallback, body: dict[str, Any]) -> ServiceSaid:
    extra = _extra(kind, body)
    match callback:
        case ResultCallback():
            return _result(callback, extra)
        case HeartbeatCallback():
            return Heartbeat(
                step_id=callback.stepId,
                attempt_no=callback.attempt_no,
                lease_id=callback.lease_id,
                extra=extra,
                progress=callback.progress,
            )
        case _:
            return Ack(step_id=callback.stepId, attempt_no=callback.attempt_no, lease_id=callback.lease_id, extra=extra)


def _result(callback: ResultCallback, extra: dict[str, Any]) -> Succeeded | Failed:
    if callback.status == "SUCCEEDED":
        if (said := _unfit(callback.result, MAX_RESULT_BYTES, "the result")) is not None:
            return _unusable(callback, ErrorInfo(*said), extra)
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
    """The work was done, but not so that a job can carry what came of it: doing it again would change nothing."""
    return Failed(
        step_id=callback.stepId,
        attempt_no=callback.attempt_no,
        lease_id=callback.lease_id,
        extra=extra,
        failure_class=FailureClass.NON_RETRYABLE,
        error=error,
    )


def _extra(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """Fields we don't know are kept as they came: a service may send what its operators need."""
    if len(body) <= 5:
        return {}
    extra = {name: value for name, value in body.items() if name not in _KNOWN[kind]}
    if extra:
        _bounded(extra, MAX_EXTRA_BYTES, "")
    return extra


def _bounded(value: Any, limit: int, pointer: str) -> None:
    if (said := _unfit(value, limit, "the extra fields together")) is not None:
        raise Rejected(RejectCode.INVALID_CALLBACK, said[1], [Fault(pointer, said[1])])


def _unfit(value: Any, limit: int, what: str) -> tuple[str, str] | None:
    """A code and a message for what is more than a job should carry."""
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
