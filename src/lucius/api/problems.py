"""Refusals as RFC 9457 problems, with one HTTP status for each code."""

import msgspec
import structlog

from lucius.contract import Problem
from lucius.ports.errors import EngineDown, ForeignEngine, LedgerDown, LedgerError, LedgerFull, VersionConflict
from lucius.usecases.errors import RejectCode, Rejected

log = structlog.get_logger(__name__)

C = RejectCode

STATUS: dict[RejectCode, int] = {
    C.MALFORMED_JSON: 400,
    C.INVALID_ENVELOPE: 422,
    C.UNKNOWN_FIELD: 422,
    C.UNSUPPORTED_SCHEMA_VERSION: 422,
    C.UNKNOWN_REQUEST_TYPE: 422,
    C.UNKNOWN_PROTOCOL_VERSION: 422,
    C.PROTOCOL_DEPRECATED: 409,
    C.INVALID_PAYLOAD: 422,
    C.FORBIDDEN_REF: 422,
    C.INVALID_TENANT: 422,
    C.MODE_NOT_PERMITTED: 403,
    C.DOC_ID_REQUIRED: 422,
    C.CALLBACK_URL_FORBIDDEN: 422,
    C.NUMBER_NOT_REPRESENTABLE: 422,
    C.IDEMPOTENCY_KEY_REUSED: 409,
    C.TENANT_LIMIT: 429,
    C.TENANT_PACED: 429,
    C.MODE_LIMIT: 429,
    C.PROTOCOL_LIMIT: 429,
    C.GLOBAL_LIMIT: 503,
    C.UNAUTHENTICATED: 401,
    C.FORBIDDEN_SCOPE: 403,
    C.FORBIDDEN_TENANT: 403,
    C.INVALID_CALLBACK_TOKEN: 401,
    C.CALLBACK_TOKEN_EXPIRED: 401,
    C.CALLBACK_TOKEN_MISMATCH: 403,
    C.INVALID_PROTOCOL: 422,
    C.PROTOCOL_IMMUTABLE: 409,
    C.PROTOCOL_STATE: 409,
    C.JOB_NOT_FOUND: 404,
    C.STEP_NOT_FOUND: 404,
    C.JOB_TERMINAL: 409,
    C.JOB_LIVE: 409,
    C.JOB_CANCELLING: 409,
    C.COMPENSATING: 409,
    C.COMPENSATED: 409,
    C.NOTHING_TO_COMPENSATE: 409,
    C.STEP_NOT_REACHED: 409,
    C.STEP_SUCCEEDED: 409,
    C.UNKNOWN_SIGNAL: 409,
    C.TOO_MANY_SIGNALS: 409,
    C.NOT_AN_APPROVER: 403,
    C.ALREADY_VOTED: 409,
    C.APPROVAL_ENDED: 409,
    C.REVIEW_NOT_FOUND: 404,
    C.REVIEW_OPEN: 409,
    C.REVIEW_CLOSED: 409,
    C.ACT_NOT_APPLICABLE: 409,
    C.VALUE_TOO_LARGE: 413,
    C.STALE_CALLBACK: 409,
    C.INVALID_CALLBACK: 422,
    C.BODY_TOO_LARGE: 413,
    C.UNSUPPORTED_MEDIA_TYPE: 415,
    C.NOT_FOUND: 404,
    C.METHOD_NOT_ALLOWED: 405,
    C.INVALID_QUERY: 422,
    C.INVALID_CURSOR: 422,
    C.BATCH_TOO_LARGE: 422,
    C.STREAM_LIMIT: 429,
    C.LONG_POLL_LIMIT: 429,
    C.PULL_LIMIT: 429,
    C.ADDRESS_LIMIT: 429,
    C.CONNECTION_LIMIT: 503,
    C.REQUEST_TIMEOUT: 408,
    C.HEADERS_TOO_LARGE: 431,
    C.LEDGER_FULL: 507,
    C.LEDGER_CONTENDED: 503,
    C.PUSH_BUS: 409,
    C.NOT_READY: 503,
    C.INTERNAL: 500,
}

TYPE_ROOT = "https://lucius.dev/problems/"
MEDIA_TYPE = "application/problem+json"
_encode = msgspec.json.Encoder().encode


def problem(rejected: Rejected) -> Problem:
    return Problem(
        type=TYPE_ROOT + rejected.code.lower().replace("_", "-"),
        title=rejected.title,
        status=STATUS[rejected.code],
        code=rejected.code,
        detail=rejected.detail,
        errors=rejected.faults,
        jobId=rejected.job_id,
        disposition=rejected.disposition,
        retry_after_seconds=rejected.retry_after_seconds,
    )


def problem_headers(rejected: Rejected) -> dict[str, str]:
    headers = {}
    if rejected.retry_after_seconds is not None:
        headers["retry-after"] = str(rejected.retry_after_seconds)
    if STATUS[rejected.code] == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def encode_problem(rejected: Rejected) -> bytes:
    return _encode(problem(rejected))


def ledger_refusal(error: LedgerError) -> Rejected:
    """Return the refusal for an error of the ledger. The ledger's path and state are for the log only."""
    match error:
        case LedgerFull():
            log.error("the ledger is full", reason=str(error))
            return Rejected(C.LEDGER_FULL, "the ledger's disk is full; nothing of this request was kept")
        case VersionConflict():
            return Rejected(C.LEDGER_CONTENDED, "the job is changing too fast; try again", retry_after_seconds=1)
        case ForeignEngine():
            log.error("a job of another engine", reason=str(error))
            advice = "set LUCIUS_ENGINE as it was until such jobs have ended"
            return Rejected(C.NOT_READY, f"{error}: {advice}", retry_after_seconds=30)
        case EngineDown():
            log.warning("the engine is down", reason=str(error))
            return Rejected(C.NOT_READY, "the engine can't be reached right now", retry_after_seconds=2)
        case LedgerDown():
            log.warning("the ledger is down", reason=str(error))
            return Rejected(C.NOT_READY, "the ledger can't be reached right now", retry_after_seconds=1)
        case _:
            log.error("the ledger refused", reason=str(error))
            return Rejected(C.NOT_READY, "the ledger cannot be used right now", retry_after_seconds=5)
