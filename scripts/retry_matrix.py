"""Write docs/retries.md from the retry matrix and failure class tables; with --check, report whether it is stale."""

import sys

from lucius.core.model.statuses import FailureClass
from lucius.core.policies.failure_classes import CODES, STATUSES, UNKNOWN, class_of_status
from lucius.core.policies.retry import MATRIX, Rule
from lucius.core.protocol.definition import RetryPolicy
from scripts.pages import keep

POLICY = RetryPolicy()

INTRODUCTION = """\
<!-- Written by scripts/retry_matrix.py from core/policies/. Run the script to change it. -->

# Retries

Every failure of a step has a class, and the class decides what follows. A step is tried up to `max_attempts` times
(`LUCIUS_MAX_ATTEMPTS` unless its `retry_policy` says otherwise), whatever the reasons; then, or if its class is not
retried, it fails for good and a review item is opened. `retry_on_classes` narrows the classes that are retried; it
can't widen them. A step that is NOT_SAFE_TO_RETRY is never tried again once it may have left us.
"""

CLASSES = {
    FailureClass.TRANSIENT: "a timeout, or a service that is away for a moment",
    FailureClass.RETRYABLE: "an error that trying again may cure, such as a lost race for a lock",
    FailureClass.RATE_LIMITED: "too many requests",
    FailureClass.DEPENDENCY_FAILED: "something behind the service failed and may recover",
    FailureClass.NON_RETRYABLE: "wrong input, missing permission, a forbidden transition",
    FailureClass.COMPENSATION_REQUIRED: "a partial effect that must be undone, not repeated",
}

BACKOFFS = {
    "policy": "the step's backoff",
    "dependency": "the step's backoff, from `dependency_delay_ms`",
    "none": "",
}


def page() -> str:
    return "\n".join((INTRODUCTION, *matrix(), "", *waits(), "", *statuses(), "", *codes(), ""))


def matrix() -> list[str]:
    head = [
        "## The matrix",
        "",
        "| class | for example | tried again | waits | `retry_after` | review item at the end |",
    ]
    return [*head, "|---|---|---|---|---|---|", *(_row(cause, rule) for cause, rule in MATRIX.items())]


def _row(cause: FailureClass, rule: Rule) -> str:
    again, asked = "yes" if rule.retried else "no", "at least that long" if rule.retry_after else ""
    return f"| `{cause}` | {CLASSES[cause]} | {again} | {BACKOFFS[rule.backoff]} | {asked} | `{rule.review}` |"


def waits() -> list[str]:
    return [
        "## How long it waits",
        "",
        "| after | wait | default |",
        "|---|---|---|",
        f"| a hand-over the bus refused | `handover_backoff_ms`, one by one | {_times(POLICY.handover_backoff_ms)} |",
        f"| no ACK | `ack_backoff_ms`, one by one | {_times(POLICY.ack_backoff_ms)} |",
        "| a lost lease, a timeout, a reported failure | `backoff_strategy`, `initial_delay_ms`, `max_delay_ms` | "
        f"{POLICY.backoff_strategy}, {_time(POLICY.initial_delay_ms)}, {_time(POLICY.max_delay_ms)} |",
        f"| the same, DEPENDENCY_FAILED | as above, from `dependency_delay_ms` | {_time(POLICY.dependency_delay_ms)} |",
        "",
        "`fixed` waits `initial_delay_ms` every time; `exponential` doubles it up to `max_delay_ms`; `jittered` waits",
        "a random part of what `exponential` would. `LUCIUS_BACKOFF_SCALE` multiplies all of these, but not a wait",
        "that the failing side asked for.",
    ]


def _times(delays: tuple[int, ...]) -> str:
    return ", ".join(map(_time, delays))


def _time(millis: int) -> str:
    seconds = millis / 1000
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"


def statuses() -> list[str]:
    rows = [f"| {status} | `{cause}` |" for status, cause in STATUSES.items()]
    return [
        "## Classes by HTTP status",
        "",
        "For `external_call` and `notify`; an `errors` rule of the protocol comes first.",
        "",
        "| status | class |",
        "|---|---|",
        *rows,
        f"| any other below 500, redirects too | `{class_of_status(499)}` |",
        f"| any other from 500 | `{class_of_status(599)}` |",
        "",
        "409 and 412 are `NON_RETRYABLE` if the `code` in the JSON body is listed as that below, such as",
        "`TRANSITION_FORBIDDEN`. A code of a partial effect is `COMPENSATION_REQUIRED` with every status.",
    ]


def codes() -> list[str]:
    rows = [
        f"| `{cause}` | {', '.join(f'`{code}`' for code, known in CODES.items() if known is cause)} |"
        for cause in FailureClass
    ]
    return [
        "## Classes by error code",
        "",
        "For a RESULT without `failure_class`; one with it is taken at its word. `HTTP_503` and the like stand for the",
        f"status, any other code is `{UNKNOWN}`. With status `FAILED_FINAL` it is `NON_RETRYABLE`, and with",
        "`FAILED_RETRY` never that.",
        "",
        "| class | codes |",
        "|---|---|",
        *rows,
    ]


if __name__ == "__main__":
    sys.exit(keep("retries.md", "retry_matrix", page))
