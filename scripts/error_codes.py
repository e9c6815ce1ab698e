"""Write docs/errors.md from the API's error codes; with --check, only report whether it is stale."""

import sys

from lucius.api.problems import MEDIA_TYPE, STATUS, TYPE_ROOT
from lucius.usecases.errors import TITLES, RejectCode
from scripts.pages import keep

INTRODUCTION = f"""\
<!-- Written by scripts/error_codes.py from src/lucius/usecases/errors.py. Do not edit: run the script. -->

# Errors of the HTTP API

The codes of failed steps are in [the retry matrix](retries.md).

A refused request gets `{MEDIA_TYPE}` (RFC 9457), and nothing of it is stored:

```json
{{
  "type": "{TYPE_ROOT}invalid-payload",
  "title": "The payload does not fit the protocol's steps",
  "status": 422,
  "code": "INVALID_PAYLOAD",
  "detail": "/payload/sis/prompt_set: required member is missing",
  "errors": [{{"pointer": "/payload/sis/prompt_set", "message": "required member is missing"}}]
}}
```

`code` is stable: it is never renamed and never changes its meaning; new ones may be added. `title` and `detail` are
for people. `errors` has a JSON Pointer into the body for each fault; for a parameter, its name. `jobId` is the job in
question, `disposition` the outcome of a callback, `retry_after_seconds` the value of the header `Retry-After`. In a
batch each item has its own problem, with `status_code`.
"""

ADVICE: dict[RejectCode, str] = {
    RejectCode.MALFORMED_JSON: "Fix the JSON; `detail` says where it breaks.",
    RejectCode.INVALID_ENVELOPE: "Fix the members that `errors` names.",
    RejectCode.UNKNOWN_FIELD: "Remove or rename the fields that `errors` names.",
    RejectCode.UNSUPPORTED_SCHEMA_VERSION: "Send `schema_version` `v1`.",
    RejectCode.UNKNOWN_REQUEST_TYPE: "Use a request type of `GET /v1/protocols`, or add its protocol.",
    RejectCode.UNKNOWN_PROTOCOL_VERSION: "Leave `protocol_version` out for the newest, or name one that is there.",
    RejectCode.PROTOCOL_DEPRECATED: "Use the successor that `detail` names; a repeated command still gets its job.",
    RejectCode.INVALID_PAYLOAD: "Fix the members that `errors` names; the protocol has the schemas.",
    RejectCode.FORBIDDEN_REF: (
        "Use a scheme, host, container and prefix of the policy, and no credentials in the reference; the message "
        "names the setting that would permit it."
    ),
    RejectCode.INVALID_TENANT: "Use 1 to 128 of `a-z 0-9 . _ -`, beginning with a letter or digit.",
    RejectCode.MODE_NOT_PERMITTED: "Use `DEFAULT`, or have the tenant allowed `BURST` in the config file.",
    RejectCode.DOC_ID_REQUIRED: "Send a `doc_id`, or another mode.",
    RejectCode.CALLBACK_URL_FORBIDDEN: "Leave the URL out, or have its host allowed in the config file.",
    RejectCode.NUMBER_NOT_REPRESENTABLE: "Send the number as a string.",
    RejectCode.IDEMPOTENCY_KEY_REUSED: "Use a new key for a new command; `jobId` is the job that holds this one.",
    RejectCode.TENANT_LIMIT: "Try again after `Retry-After`, when some of the tenant's jobs have ended.",
    RejectCode.TENANT_PACED: "Try again after `Retry-After`; `LUCIUS_TENANT_SHARE` sets the share.",
    RejectCode.MODE_LIMIT: "Try again after `Retry-After`, or in another mode.",
    RejectCode.PROTOCOL_LIMIT: "Try again after `Retry-After`.",
    RejectCode.GLOBAL_LIMIT: "Try again after `Retry-After`.",
    RejectCode.UNAUTHENTICATED: "Send an API key as `Authorization: Bearer <key>`.",
    RejectCode.FORBIDDEN_SCOPE: "Use a key with the scope, or for a service the key of that service.",
    RejectCode.FORBIDDEN_TENANT: "Use a key of that tenant.",
    RejectCode.INVALID_CALLBACK_TOKEN: "Send the directive's `callback_token` as bearer token, as it came.",
    RejectCode.CALLBACK_TOKEN_EXPIRED: "Do not retry: the attempt ended longer ago than `LUCIUS_LATE_WINDOW`.",
    RejectCode.CALLBACK_TOKEN_MISMATCH: "Take token and ids from the same directive.",
    RejectCode.INVALID_PROTOCOL: "Fix what `errors` names; `POST /v1/protocols:validate` checks without publishing.",
    RejectCode.PROTOCOL_IMMUTABLE: "Give the change a higher `version`.",
    RejectCode.PROTOCOL_STATE: "Look at the version: `detail` has its state, since when, and the key that set it.",
    RejectCode.JOB_NOT_FOUND: "Check the id, and that the key is good for the job's tenant.",
    RejectCode.STEP_NOT_FOUND: "Check the id; do not retry a callback: the ledger has no record of its hand-over.",
    RejectCode.JOB_TERMINAL: "Nothing to do: the job has ended.",
    RejectCode.JOB_LIVE: "Wait until the job has ended, or cancel it first.",
    RejectCode.JOB_CANCELLING: "Wait until it is CANCELLED; then `:retry` opens a new run.",
    RejectCode.COMPENSATING: "Wait: the job ends by itself once its effects are undone.",
    RejectCode.COMPENSATED: "Use `retry`: it does again what was undone.",
    RejectCode.NOTHING_TO_COMPENSATE: "Use `retry`, `skip` or `discard`.",
    RejectCode.STEP_NOT_REACHED: "Retry from the step that `detail` names, or from one before it.",
    RejectCode.STEP_SUCCEEDED: "Discard the item: its result is not needed.",
    RejectCode.UNKNOWN_SIGNAL: "Use a name that `detail` lists: those that steps of the protocol wait for.",
    RejectCode.TOO_MANY_SIGNALS: "Wait until a step has taken some of them.",
    RejectCode.NOT_AN_APPROVER: "Let one of the approvers in `detail` approve; the config file has a key's `groups`.",
    RejectCode.ALREADY_VOTED: "Let another person vote; a vote can't be changed.",
    RejectCode.APPROVAL_ENDED: "Nothing to do: look at the job for how it was decided.",
    RejectCode.REVIEW_NOT_FOUND: "Check the id, and that the key is good for the item's tenant.",
    RejectCode.REVIEW_OPEN: "Act on the review item that `detail` names.",
    RejectCode.REVIEW_CLOSED: "Look at the item: it has the action, the operator and the reason.",
    RejectCode.ACT_NOT_APPLICABLE: "Use an act that `GET /v1/review/{review_id}` lists as allowed.",
    RejectCode.VALUE_TOO_LARGE: "Send less: a reference to where the value is.",
    RejectCode.STALE_CALLBACK: "Stop working on this attempt; a success is kept in quarantine.",
    RejectCode.INVALID_CALLBACK: "Fix what `errors` names; write large output to the workspace.",
    RejectCode.BODY_TOO_LARGE: "Send less, or raise `LUCIUS_MAX_BODY_BYTES` or, for batches, `LUCIUS_MAX_BATCH_BYTES`.",
    RejectCode.UNSUPPORTED_MEDIA_TYPE: "Send `Content-Type: application/json`.",
    RejectCode.NOT_FOUND: "Check the path; `/openapi.json` has all of them.",
    RejectCode.METHOD_NOT_ALLOWED: "Use the method that `Allow` names.",
    RejectCode.INVALID_QUERY: "Fix the parameter that `errors` or `detail` names.",
    RejectCode.INVALID_CURSOR: "Use `next_cursor` of the same listing as it came, or start again.",
    RejectCode.BATCH_TOO_LARGE: "Send batches of up to 500 items.",
    RejectCode.STREAM_LIMIT: "Close streams or poll; `LUCIUS_MAX_STREAMS_PER_KEY` and `…_PER_TENANT` set the limits.",
    RejectCode.LONG_POLL_LIMIT: "Ask without `wait`, or try again after `Retry-After`; "
    "`LUCIUS_MAX_LONG_POLLS_PER_KEY` and `…_PER_TENANT` set the limits.",
    RejectCode.PULL_LIMIT: "Pull again after `Retry-After`, or pull more directives at a time with fewer pulls; "
    "`LUCIUS_MAX_WAITING_PULLS_PER_KEY` and `…_PER_TENANT` set the limits.",
    RejectCode.ADDRESS_LIMIT: "Use fewer connections; name a proxy in `LUCIUS_TRUSTED_PROXIES`.",
    RejectCode.CONNECTION_LIMIT: "Try again after `Retry-After`; `LUCIUS_MAX_CONNECTIONS` sets the limit.",
    RejectCode.REQUEST_TIMEOUT: "Send it again over a faster connection, or raise "
    "`LUCIUS_HEADER_TIMEOUT` or `LUCIUS_BODY_TIMEOUT`.",
    RejectCode.HEADERS_TOO_LARGE: "Send smaller headers, or raise `LUCIUS_MAX_HEADER_BYTES`.",
    RejectCode.LEDGER_FULL: "Free disk space, then send it again: no accepted job is lost.",
    RejectCode.LEDGER_CONTENDED: "Send it again.",
    RejectCode.PUSH_BUS: "Consume from the bus that `LUCIUS_BUS_URL` names.",
    RejectCode.NOT_READY: "Try again after `Retry-After`; if it lasts, the server's log says why.",
    RejectCode.INTERNAL: "Report it with the server's log; sending it again is safe.",
}


def page() -> str:
    codes = sorted(RejectCode, key=lambda code: (STATUS[code], code))
    rows = [f"| `{code}` | {STATUS[code]} | {TITLES[code]} | {ADVICE[code]} |" for code in codes]
    table = ["| code | status | meaning | what to do |", "|---|---|---|---|", *rows]
    return "\n".join((INTRODUCTION, *table, ""))


if __name__ == "__main__":
    sys.exit(keep("errors.md", "error_codes", page))
