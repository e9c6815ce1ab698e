"""Cases about every step: ACK, heartbeats, one RESULT."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from lucius.conformance.attempt_log import PlayedAttempt, ReceivedCallback
from lucius.conformance.case import Case
from lucius.conformance.case_env import CaseEnv, describe, require_not_refused, require_success, summarize_callbacks
from lucius.conformance.evidence import ADVICE, is_uri, path_of, require_slow
from lucius.conformance.model import CaseFailed, NotShown, Skipped

MIN_ACK_LEAD_SECONDS = 1.0  # an ACK that comes at least this long before the RESULT was not sent after the work
REPEAT_WINDOW_SECONDS = 1.5
MAX_RESULT_BYTES = 256 * 1024
MAX_HEARTBEATS_PER_LEASE = 20


async def runs(env: CaseEnv) -> str:
    """Check that the service can do a plain step; if it can't, the other cases prove nothing."""
    await env.start()
    attempt = env.send(env.make())
    await env.wait_for_result(attempt)
    require_success(attempt)
    return "a plain step SUCCEEDED"


async def ack(env: CaseEnv) -> str:
    await env.start(slow=env.options.ack_seconds + 1)
    attempt = env.send(env.make())
    handed_over = await env.wait_for_hand_over(attempt)
    expected = f"an ACK within {attempt.ack_seconds:g} s of hand-over"
    await env.wait_until(lambda: attempt.acks or attempt.results, attempt.ack_seconds)
    if not attempt.acks:
        raise CaseFailed(expected, summarize_callbacks(attempt))
    seconds = attempt.acks[0].at - handed_over
    if await env.wait_until(lambda: attempt.results, MIN_ACK_LEAD_SECONDS):
        raise NotShown(f"the RESULT came {attempt.results[0].at - attempt.acks[0].at:.2f} s after the ACK: {ADVICE}")
    return f"ACK {seconds * 1000:.0f} ms after hand-over, before the work was done"


async def result(env: CaseEnv) -> str:
    await env.start()
    elsewhere = env.make()
    elsewhere.directive["callback_urls"] = env.directive_factory.client_callback_urls()
    attempts = [env.send(attempt) for attempt in (env.make(), elsewhere, *_two_steps(env))]
    for attempt in attempts:
        await env.wait_for_result(attempt)
    await env.watch(REPEAT_WINDOW_SECONDS)
    for attempt in attempts:
        _check_once(attempt)
        _check_success(attempt)
        _check_artifacts(env, attempt)
    if absent := [name for attempt in attempts if (name := _missing_output(attempt))]:
        env.warn(f"last_step was true, but nothing was written to output_ref {absent[0]}")
    _check_own_artifacts(*attempts[-2:])
    if any(attempt.acks[0].at > attempt.results[0].at for attempt in attempts):
        env.warn("an ACK came after its RESULT; send it first, or not at all")
    return f"{len(attempts)} attempts, each with one RESULT that was accepted"


def _two_steps(env: CaseEnv) -> list[PlayedAttempt]:
    """Create attempts at two steps of one job, such as items of a map."""
    first = env.make(step_id=f"{env.directive_factory.service}.0")
    second = env.make(job_id=first.key.job_id, step_id=f"{env.directive_factory.service}.1")
    for attempt in (first, second):
        attempt.directive["last_step"] = False
    return [first, second]


def _check_once(attempt: PlayedAttempt) -> None:
    if len(attempt.results) != 1:
        raise CaseFailed(
            f"one RESULT of {describe(attempt)}, which was answered 200 APPLIED",
            f"{len(attempt.results)} came",
        )
    if not attempt.acks:
        raise CaseFailed(f"an ACK of {describe(attempt)}, before its RESULT", "none came")


def _check_success(attempt: PlayedAttempt) -> None:
    require_success(attempt)
    body = attempt.results[0].body
    size = len(msgspec.json.encode(body.get("result")))
    if size > MAX_RESULT_BYTES:
        raise CaseFailed(f"a result of at most {MAX_RESULT_BYTES} bytes", f"it has {size}; write an artifact instead")


def _check_artifacts(env: CaseEnv, attempt: PlayedAttempt) -> None:
    workspace = path_of(attempt.directive["workspace_ref"])
    assert workspace is not None
    own = workspace / attempt.key.step_id / str(attempt.key.attempt_no)
    for ref, path in _local_artifacts(attempt.results[0]):
        if not path.exists():
            raise CaseFailed("that every artifact_ref refers to an existing file", f"{ref} does not exist")
        if not path.resolve().is_relative_to(own.resolve()) and not _is_output(ref, attempt):
            env.warn(f"an artifact lies outside <workspace_ref>/<stepId>/<attempt_no>/: {ref}")


def _check_own_artifacts(first: PlayedAttempt, second: PlayedAttempt) -> None:
    refs = [
        {ref for ref in attempt.results[0].body.get("artifact_refs") or [] if not _is_output(ref, attempt)}
        for attempt in (first, second)
    ]
    if shared := refs[0] & refs[1]:
        raise CaseFailed(
            "separate artifacts for two steps of one job that differ in stepId only",
            f"both refer to {sorted(shared)[0]}",
        )


def _is_output(ref: str, attempt: PlayedAttempt) -> bool:
    """Return whether a ref is at or below the directive's `output_ref`, which is the same for every last step."""
    wanted: str = attempt.directive["output_ref"]
    return ref == wanted or ref.startswith(wanted.rstrip("/") + "/")


def _local_artifacts(callback: ReceivedCallback) -> Iterator[tuple[str, Path]]:
    for ref in callback.body.get("artifact_refs") or []:
        if not is_uri(ref):
            raise CaseFailed("that every artifact_ref is a URI", f"one is {ref!r}"[:300])
        if (path := path_of(ref)) is not None:
            yield ref, path


def _missing_output(attempt: PlayedAttempt) -> str:
    path = path_of(attempt.directive["output_ref"])
    assert path is not None
    return "" if path.exists() or not attempt.directive["last_step"] else path.name


async def heartbeat(env: CaseEnv) -> str:
    await env.start(slow=4.5)
    lease = max(1.0, env.slow / 3)
    attempt = env.send(env.make(lease=lease))
    await env.wait_for_ack(attempt)
    await env.wait_for_result(attempt)
    require_slow(attempt, env.slow)
    require_not_refused(attempt)
    instants = [callback.at for callback in attempt.callbacks if callback.kind != "result"] + [attempt.results[0].at]
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    if max(gaps) > lease:
        raise CaseFailed(
            f"a heartbeat in each {lease:g} s of the lease while the step runs",
            f"{len(attempt.heartbeats)} came, and {max(gaps):.1f} s passed without one; send one every third of"
            " lease_seconds, also while the step works",
        )
    if len(attempt.heartbeats) > MAX_HEARTBEATS_PER_LEASE * env.slow / lease:
        env.warn(f"{len(attempt.heartbeats)} heartbeats in {env.slow:g} s: three per lease are enough")
    return f"{len(attempt.heartbeats)} heartbeats under a lease of {lease:g} s, at most {max(gaps):.1f} s apart"


async def bad_payload(env: CaseEnv) -> str:
    if env.options.bad_payload is None:
        raise Skipped("give a --bad-payload with which no attempt can succeed")
    await env.start()
    attempt = env.send(env.make(payload=env.options.bad_payload))
    await env.wait_for_result(attempt)
    body = attempt.results[0].body
    error = body.get("error") or {}
    summary = f"{body['status']} {body.get('failure_class')} {error.get('code')}"
    if body["status"] not in ("FAILED", "FAILED_FINAL") or body.get("failure_class") != "NON_RETRYABLE":
        raise CaseFailed("FAILED with failure_class NON_RETRYABLE for the --bad-payload", f"the RESULT was {summary}")
    if not error.get("code"):
        raise CaseFailed("an error {code, message} with the failure", f"the RESULT was {summary}")
    return summary


CASES = [
    Case(id="runs", title="A plain step runs and succeeds", play=runs, seconds=1.0),
    Case(id="ack", title="A directive is acknowledged before its ACK deadline", play=ack, seconds=1.5),
    Case(id="result", title="Each attempt ends with one RESULT that fits the contract", play=result, seconds=2.5),
    Case(id="heartbeat", title="Heartbeats keep a short lease alive during a slow step", play=heartbeat, seconds=5.5),
    Case(id="bad-payload", title="An invalid payload fails the step as NON_RETRYABLE", play=bad_payload, seconds=1.0),
]
