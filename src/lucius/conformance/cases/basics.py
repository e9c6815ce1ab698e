"""What every step goes through: ACK, heartbeats, one RESULT."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from lucius.conformance.book import Attempt, Said
from lucius.conformance.cases import Case
from lucius.conformance.evidence import ADVICE, is_uri, path_of, require_slow
from lucius.conformance.model import Failed, NotShown, Skipped
from lucius.conformance.stage import Stage, heard_of, require_not_refused, words

AHEAD = 1.0  # an ACK that comes this much before the RESULT was not sent after the work
REPEATS_WITHIN = 1.5
LARGEST_RESULT = 256 * 1024
BEATS_PER_LEASE = 20


async def ack(stage: Stage) -> str:
    await stage.start(slow=stage.options.ack_seconds + 1)
    attempt = stage.send(stage.make())
    handed_over = await stage.taken(attempt)
    expected = f"an ACK within {attempt.ack_seconds:g} s of hand-over"
    await stage.until(lambda: attempt.acks or attempt.results, attempt.ack_seconds)
    if not attempt.acks:
        raise Failed(expected, heard_of(attempt))
    seconds = attempt.acks[0].at - handed_over
    if await stage.until(lambda: attempt.results, AHEAD):
        raise NotShown(f"the RESULT came {attempt.results[0].at - attempt.acks[0].at:.2f} s after the ACK: {ADVICE}")
    return f"ACK {seconds * 1000:.0f} ms after hand-over, before the work was done"


async def result(stage: Stage) -> str:
    await stage.start()
    elsewhere = stage.make()
    elsewhere.directive["callback_urls"] = stage.maker.elsewhere()
    attempts = [stage.send(attempt) for attempt in (stage.make(), elsewhere, *_two_steps(stage))]
    for attempt in attempts:
        await stage.ended(attempt)
    await stage.watch(REPEATS_WITHIN)
    for attempt in attempts:
        _check_once(attempt)
        _check_success(attempt)
        _check_artifacts(stage, attempt)
    if absent := [name for attempt in attempts if (name := _missing_output(attempt))]:
        stage.warn(f"last_step was true and nothing was written to output_ref {absent[0]}")
    _check_own_artifacts(*attempts[-2:])
    if any(attempt.acks[0].at > attempt.results[0].at for attempt in attempts):
        stage.warn("an ACK came after its RESULT, which needs none then; send it first")
    return f"{len(attempts)} attempts, each with one RESULT that was accepted"


def _two_steps(stage: Stage) -> list[Attempt]:
    """Of one job, as items of a map are."""
    first = stage.make(step_id=f"{stage.maker.service}.0")
    second = stage.make(job_id=first.key.job_id, step_id=f"{stage.maker.service}.1")
    for attempt in (first, second):
        attempt.directive["last_step"] = False
    return [first, second]


def _check_once(attempt: Attempt) -> None:
    if len(attempt.results) != 1:
        raise Failed(
            f"one RESULT of {words(attempt)}, for it was answered 200 APPLIED",
            f"{len(attempt.results)} came",
        )
    if not attempt.acks:
        raise Failed(f"an ACK of {words(attempt)}, before its RESULT", "none came")


def _check_success(attempt: Attempt) -> None:
    body = attempt.results[0].body
    if body["status"] != "SUCCEEDED":
        error = body.get("error") or {}
        raise Failed(
            "that the service can do a plain step",
            f"it said {body['status']} {error.get('code')}: {error.get('message', '')}"[:300]
            + "; give a --payload and an --input that it can work on",
        )
    size = len(msgspec.json.encode(body.get("result")))
    if size > LARGEST_RESULT:
        raise Failed(f"a result of at most {LARGEST_RESULT} bytes", f"it has {size}; write an artifact instead")


def _check_artifacts(stage: Stage, attempt: Attempt) -> None:
    workspace = path_of(attempt.directive["workspace_ref"])
    assert workspace is not None
    own = workspace / attempt.key.step_id / str(attempt.key.attempt_no)
    for ref, path in _local(attempt.results[0]):
        if not path.exists():
            raise Failed("that every artifact_ref leads to a file", f"there is none at {ref}")
        if not path.resolve().is_relative_to(own.resolve()):
            stage.warn(f"an artifact lies outside <workspace_ref>/<stepId>/<attempt_no>/: {ref}")


def _check_own_artifacts(first: Attempt, second: Attempt) -> None:
    refs = [set(attempt.results[0].body.get("artifact_refs") or []) for attempt in (first, second)]
    if shared := refs[0] & refs[1]:
        raise Failed(
            "artifacts of their own for two steps of one job, which differ in stepId only",
            f"both name {sorted(shared)[0]}",
        )


def _local(said: Said) -> Iterator[tuple[str, Path]]:
    for ref in said.body.get("artifact_refs") or []:
        if not is_uri(ref):
            raise Failed("that every artifact_ref is a URI", f"one is {ref!r}"[:300])
        if (path := path_of(ref)) is not None:
            yield ref, path


def _missing_output(attempt: Attempt) -> str:
    path = path_of(attempt.directive["output_ref"])
    assert path is not None
    return "" if path.exists() or not attempt.directive["last_step"] else path.name


async def heartbeat(stage: Stage) -> str:
    await stage.start(slow=4.5)
    lease = max(1.0, stage.slow / 3)
    attempt = stage.send(stage.make(lease=lease))
    await stage.acked(attempt)
    await stage.ended(attempt)
    require_slow(attempt, stage.slow)
    require_not_refused(attempt)
    instants = [said.at for said in attempt.heard if said.kind != "result"] + [attempt.results[0].at]
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    if max(gaps) > lease:
        raise Failed(
            f"a heartbeat in each {lease:g} s of the lease while the step runs",
            f"{len(attempt.beats)} came, and {max(gaps):.1f} s passed in silence; a third of lease_seconds is a good"
            " interval, and work must not stop them",
        )
    if len(attempt.beats) > BEATS_PER_LEASE * stage.slow / lease:
        stage.warn(f"{len(attempt.beats)} heartbeats in {stage.slow:g} s: three per lease are enough")
    return f"{len(attempt.beats)} heartbeats under a lease of {lease:g} s, at most {max(gaps):.1f} s apart"


async def bad_payload(stage: Stage) -> str:
    if stage.options.bad_payload is None:
        raise Skipped("give a --bad-payload that no attempt could ever succeed with")
    await stage.start()
    attempt = stage.send(stage.make(payload=stage.options.bad_payload))
    await stage.ended(attempt)
    body = attempt.results[0].body
    error = body.get("error") or {}
    said = f"{body['status']} {body.get('failure_class')} {error.get('code')}"
    if body["status"] not in ("FAILED", "FAILED_FINAL") or body.get("failure_class") != "NON_RETRYABLE":
        raise Failed("FAILED with failure_class NON_RETRYABLE for a payload that can't work", f"it said {said}")
    if not error.get("code"):
        raise Failed("an error {code, message} with the failure", f"it said {said}")
    return said


CASES = [
    Case(id="ack", title="A directive is acknowledged before its ACK deadline", play=ack, seconds=1.5),
    Case(id="result", title="Each attempt ends by one RESULT that fits the contract", play=result, seconds=2.5),
    Case(id="heartbeat", title="Heartbeats keep a short lease alive in a slow step", play=heartbeat, seconds=5.5),
    Case(id="bad-payload", title="A payload that can't work fails the step for good", play=bad_payload, seconds=1.0),
]
