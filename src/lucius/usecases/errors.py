"""Refusals that a caller can get, each with a stable code. HTTP statuses are assigned in `api/`.

ExpectedError
└── Rejected     code, detail, faults; and for some codes the job, the disposition or when to try again
"""

from collections.abc import Sequence
from enum import StrEnum

from lucius.contract import Fault
from lucius.ports.errors import ExpectedError


class RejectCode(StrEnum):
    """Stable error codes: never renamed, and never given another meaning."""

    MALFORMED_JSON = "MALFORMED_JSON"
    INVALID_ENVELOPE = "INVALID_ENVELOPE"
    UNKNOWN_FIELD = "UNKNOWN_FIELD"
    UNSUPPORTED_SCHEMA_VERSION = "UNSUPPORTED_SCHEMA_VERSION"
    UNKNOWN_REQUEST_TYPE = "UNKNOWN_REQUEST_TYPE"
    UNKNOWN_PROTOCOL_VERSION = "UNKNOWN_PROTOCOL_VERSION"
    PROTOCOL_DEPRECATED = "PROTOCOL_DEPRECATED"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    FORBIDDEN_REF = "FORBIDDEN_REF"
    INVALID_TENANT = "INVALID_TENANT"
    MODE_NOT_PERMITTED = "MODE_NOT_PERMITTED"
    DOC_ID_REQUIRED = "DOC_ID_REQUIRED"
    CALLBACK_URL_FORBIDDEN = "CALLBACK_URL_FORBIDDEN"
    NUMBER_NOT_REPRESENTABLE = "NUMBER_NOT_REPRESENTABLE"
    IDEMPOTENCY_KEY_REUSED = "IDEMPOTENCY_KEY_REUSED"
    TENANT_LIMIT = "TENANT_LIMIT"
    TENANT_PACED = "TENANT_PACED"
    MODE_LIMIT = "MODE_LIMIT"
    PROTOCOL_LIMIT = "PROTOCOL_LIMIT"
    GLOBAL_LIMIT = "GLOBAL_LIMIT"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN_SCOPE = "FORBIDDEN_SCOPE"
    FORBIDDEN_TENANT = "FORBIDDEN_TENANT"
    INVALID_CALLBACK_TOKEN = "INVALID_CALLBACK_TOKEN"
    CALLBACK_TOKEN_EXPIRED = "CALLBACK_TOKEN_EXPIRED"
    CALLBACK_TOKEN_MISMATCH = "CALLBACK_TOKEN_MISMATCH"
    INVALID_PROTOCOL = "INVALID_PROTOCOL"
    PROTOCOL_IMMUTABLE = "PROTOCOL_IMMUTABLE"
    PROTOCOL_STATE = "PROTOCOL_STATE"
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    STEP_NOT_FOUND = "STEP_NOT_FOUND"
    JOB_TERMINAL = "JOB_TERMINAL"
    JOB_LIVE = "JOB_LIVE"
    JOB_CANCELLING = "JOB_CANCELLING"
    COMPENSATING = "COMPENSATING"
    COMPENSATED = "COMPENSATED"
    NOTHING_TO_COMPENSATE = "NOTHING_TO_COMPENSATE"
    STEP_NOT_REACHED = "STEP_NOT_REACHED"
    STEP_SUCCEEDED = "STEP_SUCCEEDED"
    UNKNOWN_SIGNAL = "UNKNOWN_SIGNAL"
    TOO_MANY_SIGNALS = "TOO_MANY_SIGNALS"
    NOT_AN_APPROVER = "NOT_AN_APPROVER"
    ALREADY_VOTED = "ALREADY_VOTED"
    APPROVAL_ENDED = "APPROVAL_ENDED"
    REVIEW_NOT_FOUND = "REVIEW_NOT_FOUND"
    REVIEW_OPEN = "REVIEW_OPEN"
    REVIEW_CLOSED = "REVIEW_CLOSED"
    ACT_NOT_APPLICABLE = "ACT_NOT_APPLICABLE"
    VALUE_TOO_LARGE = "VALUE_TOO_LARGE"
    STALE_CALLBACK = "STALE_CALLBACK"
    INVALID_CALLBACK = "INVALID_CALLBACK"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    INVALID_QUERY = "INVALID_QUERY"
    INVALID_CURSOR = "INVALID_CURSOR"
    BATCH_TOO_LARGE = "BATCH_TOO_LARGE"
    STREAM_LIMIT = "STREAM_LIMIT"
    LONG_POLL_LIMIT = "LONG_POLL_LIMIT"
    PULL_LIMIT = "PULL_LIMIT"
    ADDRESS_LIMIT = "ADDRESS_LIMIT"
    CONNECTION_LIMIT = "CONNECTION_LIMIT"
    REQUEST_TIMEOUT = "REQUEST_TIMEOUT"
    HEADERS_TOO_LARGE = "HEADERS_TOO_LARGE"
    LEDGER_FULL = "LEDGER_FULL"
    LEDGER_CONTENDED = "LEDGER_CONTENDED"
    PUSH_BUS = "PUSH_BUS"
    NOT_READY = "NOT_READY"
    INTERNAL = "INTERNAL"


TITLES: dict[RejectCode, str] = {
    RejectCode.MALFORMED_JSON: "The body is not valid JSON",
    RejectCode.INVALID_ENVELOPE: "The body does not follow the envelope",
    RejectCode.UNKNOWN_FIELD: "The body has unknown fields",
    RejectCode.UNSUPPORTED_SCHEMA_VERSION: "This schema_version is not supported",
    RejectCode.UNKNOWN_REQUEST_TYPE: "No protocol serves this request_type",
    RejectCode.UNKNOWN_PROTOCOL_VERSION: "The protocol has no such version",
    RejectCode.PROTOCOL_DEPRECATED: "The protocol takes no new commands",
    RejectCode.INVALID_PAYLOAD: "The payload does not fit the protocol's steps",
    RejectCode.FORBIDDEN_REF: "A reference is malformed or outside the policy",
    RejectCode.INVALID_TENANT: "The tenant_id is not a tenant id",
    RejectCode.MODE_NOT_PERMITTED: "The tenant may not use this mode",
    RejectCode.DOC_ID_REQUIRED: "BURST needs a doc_id",
    RejectCode.CALLBACK_URL_FORBIDDEN: "A callback URL is malformed or its host is not allowed",
    RejectCode.NUMBER_NOT_REPRESENTABLE: "A value cannot be carried exactly by every JSON reader",
    RejectCode.IDEMPOTENCY_KEY_REUSED: "The idempotency key belongs to a different command",
    RejectCode.TENANT_LIMIT: "The tenant has as many jobs in flight as it may have",
    RejectCode.TENANT_PACED: "The tenant submits more than its share while other tenants are active",
    RejectCode.MODE_LIMIT: "This mode has as many jobs in flight as it may have",
    RejectCode.PROTOCOL_LIMIT: "This protocol has as many jobs in flight as it may have",
    RejectCode.GLOBAL_LIMIT: "The deployment has as many jobs in flight as it may have",
    RejectCode.UNAUTHENTICATED: "No valid credentials were given",
    RejectCode.FORBIDDEN_SCOPE: "The credentials lack the scope for this",
    RejectCode.FORBIDDEN_TENANT: "The credentials do not cover this tenant",
    RejectCode.INVALID_CALLBACK_TOKEN: "The callback token is missing or not valid",
    RejectCode.CALLBACK_TOKEN_EXPIRED: "The callback token has expired",
    RejectCode.CALLBACK_TOKEN_MISMATCH: "The callback token belongs to another attempt",
    RejectCode.INVALID_PROTOCOL: "The document is not a protocol that can be published",
    RejectCode.PROTOCOL_IMMUTABLE: "A published version never changes",
    RejectCode.PROTOCOL_STATE: "The state of the version does not allow this",
    RejectCode.JOB_NOT_FOUND: "There is no such job",
    RejectCode.STEP_NOT_FOUND: "The job has no such step",
    RejectCode.JOB_TERMINAL: "The job has ended",
    RejectCode.JOB_LIVE: "The job has not ended",
    RejectCode.JOB_CANCELLING: "The job is being cancelled",
    RejectCode.COMPENSATING: "The job is being compensated",
    RejectCode.COMPENSATED: "Steps that this would build on were compensated",
    RejectCode.NOTHING_TO_COMPENSATE: "No completed step has a handler that could undo it",
    RejectCode.STEP_NOT_REACHED: "The job did not get as far as this step",
    RejectCode.STEP_SUCCEEDED: "The step has a result already",
    RejectCode.UNKNOWN_SIGNAL: "No step of the job waits for this signal",
    RejectCode.TOO_MANY_SIGNALS: "The job has as many undelivered signals as it may have",
    RejectCode.NOT_AN_APPROVER: "The caller is not an approver of this step",
    RejectCode.ALREADY_VOTED: "The caller has voted on this step already",
    RejectCode.APPROVAL_ENDED: "The approval has been decided or is no longer awaited",
    RejectCode.REVIEW_NOT_FOUND: "There is no such review item",
    RejectCode.REVIEW_OPEN: "The job waits for an act on its review item",
    RejectCode.REVIEW_CLOSED: "The review item is closed already",
    RejectCode.ACT_NOT_APPLICABLE: "The review item does not take this act",
    RejectCode.VALUE_TOO_LARGE: "A value is larger than a job should carry",
    RejectCode.STALE_CALLBACK: "Another attempt of the step is current",
    RejectCode.INVALID_CALLBACK: "The callback does not follow the contract",
    RejectCode.BODY_TOO_LARGE: "The body is larger than the limit",
    RejectCode.UNSUPPORTED_MEDIA_TYPE: "The body must be application/json",
    RejectCode.NOT_FOUND: "There is nothing at this address",
    RejectCode.METHOD_NOT_ALLOWED: "This address does not take this method",
    RejectCode.INVALID_QUERY: "A query parameter is wrong",
    RejectCode.INVALID_CURSOR: "The cursor is not one of this listing",
    RejectCode.BATCH_TOO_LARGE: "The batch has more items than the limit",
    RejectCode.STREAM_LIMIT: "The key or the tenant has as many live streams as it may have",
    RejectCode.LONG_POLL_LIMIT: "The key or the tenant has as many long polls as it may have",
    RejectCode.PULL_LIMIT: "The key or the tenant has as many waiting pulls as it may have",
    RejectCode.ADDRESS_LIMIT: "The address has as many connections as it may have",
    RejectCode.CONNECTION_LIMIT: "The server has as many connections as it may have",
    RejectCode.REQUEST_TIMEOUT: "The request did not arrive in time",
    RejectCode.HEADERS_TOO_LARGE: "The request's headers are larger than the limit",
    RejectCode.LEDGER_FULL: "The ledger has no space left; nothing was kept",
    RejectCode.LEDGER_CONTENDED: "The job is changing too fast; try again",
    RejectCode.PUSH_BUS: "Directives are pushed over a bus here, not pulled",
    RejectCode.NOT_READY: "The server cannot take work yet",
    RejectCode.INTERNAL: "Internal error",
}


class Rejected(ExpectedError):
    """The request is refused; nothing was created or changed."""

    def __init__(
        self,
        code: RejectCode,
        detail: str = "",
        faults: Sequence[Fault] = (),
        *,
        job_id: str | None = None,
        disposition: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail or TITLES[code]}")
        self.code = code
        self.detail = detail
        self.faults = list(faults)
        self.job_id = job_id
        self.disposition = disposition
        self.retry_after_seconds = retry_after_seconds

    @property
    def title(self) -> str:
        return TITLES[self.code]
