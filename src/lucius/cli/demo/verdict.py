"""Verdict: whether anything was lost, and whether every injected failure had its effect, read over the API."""

from pathlib import Path

from msgspec import Struct, field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lucius.cli.demo.answers import FoundAnswer, find_answers, reads_scans, show_answers
from lucius.cli.demo.commands import blob_path
from lucius.cli.demo.demo_env import DemoEnv, Fault
from lucius.cli.demo.stack import CONTROL_PLANE
from lucius.client import AsyncClient
from lucius.contract import EventView, JobSummary, StepWithAttempts


class Verdict(Struct, kw_only=True):
    seed: int
    seconds: float
    jobs_accepted: int
    jobs_in_ledger: int
    jobs_finished: int
    jobs_lost: int
    lost: list[str]
    commands: int
    submissions_repeated: int
    steps: int = 0
    steps_run_twice: int = 0
    results_applied_twice: int = 0
    fenced_callbacks: int = 0
    quarantined_results: int = 0
    duplicate_callbacks: int = 0
    late_callbacks: int = 0
    ack_timeouts: int = 0
    leases_expired: int = 0
    outputs_present: int = 0
    restarts_survived: list[str] = field(default_factory=list)
    answers: list[FoundAnswer] = field(default_factory=list)
    checks: dict[str, bool] = field(default_factory=dict)
    ok: bool = False


async def judge(env: DemoEnv, seed: int) -> Verdict:
    jobs = {job.jobId: job for job in await env.jobs()}
    lost = [job_id for job_id in env.accepted if not _finished(jobs.get(job_id))]
    verdict = Verdict(
        seed=seed,
        seconds=round(env.display.seconds, 1),
        jobs_accepted=len(env.accepted),
        jobs_in_ledger=len(jobs),
        jobs_finished=sum(_finished(job) for job in jobs.values()),
        jobs_lost=len(lost),
        lost=lost,
        commands=len(env.commands),
        submissions_repeated=env.repeats,
        restarts_survived=list(env.killed),
    )
    for job_id in jobs:
        await _add_job(verdict, env.client, job_id)
    outputs = (blob_path(env.stack.blobs, document.command["output_ref"]) for document in env.accepted.values())
    verdict.outputs_present = sum(map(_has_output, outputs))
    verdict.answers = find_answers(env.contract, env.stack.blobs)
    verdict.checks = _checks(verdict) | await _effects(env)
    verdict.ok = all(verdict.checks.values())
    return verdict


def _finished(job: JobSummary | None) -> bool:
    return job is not None and job.status == "SUCCEEDED"


async def _add_job(verdict: Verdict, client: AsyncClient, job_id: str) -> None:
    events = [event async for event in client.events(job_id)]
    for step in await client.steps(job_id):
        _add_step(verdict, step, [event for event in events if event.stepId == step.stepId])


def _add_step(verdict: Verdict, step: StepWithAttempts, events: list[EventView]) -> None:
    dispositions = [event.data["disposition"] for event in events if "disposition" in event.data]
    successes = [event for event in events if event.type == "CALLBACK_RESULT" and "failure_class" not in event.data]
    applied = [event for event in successes if event.data["disposition"] == "APPLIED"]
    verdict.steps += 1
    verdict.steps_run_twice += sum(attempt.acked_at is not None for attempt in step.attempts) > 1
    verdict.results_applied_twice += len(applied) > 1
    verdict.fenced_callbacks += dispositions.count("STALE")
    verdict.duplicate_callbacks += dispositions.count("DUPLICATE")
    verdict.late_callbacks += dispositions.count("LATE")
    verdict.quarantined_results += sum(attempt.quarantined is not None for attempt in step.attempts)
    verdict.ack_timeouts += sum(attempt.outcome == "ACK_TIMEOUT" for attempt in step.attempts)
    verdict.leases_expired += sum(attempt.outcome == "LEASE_EXPIRED" for attempt in step.attempts)


def _has_output(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _checks(verdict: Verdict) -> dict[str, bool]:
    """Check that nothing was lost and nothing applied twice."""
    return {
        "nothing_lost": verdict.jobs_lost == 0 and verdict.jobs_accepted > 0,
        "one_job_per_command": verdict.commands == verdict.jobs_accepted == verdict.jobs_in_ledger,
        "all_outputs_written": verdict.outputs_present == verdict.jobs_accepted,
        "no_result_applied_twice": verdict.results_applied_twice == 0,
        "repeats_recognised": verdict.submissions_repeated > 0,
        "control_plane_came_back": CONTROL_PLANE in verdict.restarts_survived,
        "contract_read": all(answer.right for answer in verdict.answers if not answer.scanned or reads_scans()),
    }


async def _effects(env: DemoEnv) -> dict[str, bool]:
    """Check that each injected failure is in the ledger, and that its step is done."""
    killed, dropped = await _outcome(env, "killed"), await _outcome(env, "dropped")
    doubled, late = await _callbacks_of(env, "doubled"), await _callbacks_of(env, "late")
    return {
        "killed_step_retried": killed == ("LEASE_EXPIRED", "SUCCEEDED"),
        "dropped_ack_retried": dropped == ("ACK_TIMEOUT", "SUCCEEDED"),
        "doubled_callbacks_recognised": {"CALLBACK_ACK DUPLICATE", "CALLBACK_RESULT DUPLICATE"} <= doubled,
        "stale_lease_refused": "CALLBACK_RESULT STALE" in late and "CALLBACK_RESULT APPLIED" not in late,
    }


async def _outcome(env: DemoEnv, fault: Fault) -> tuple[str | None, str] | None:
    """Return how the attempt ended, and the state of its step."""
    attempt_ref = env.faulted_attempts.get(fault)
    for step in await env.client.steps(attempt_ref.job_id) if attempt_ref else ():
        for attempt in step.attempts:
            if attempt_ref and (step.stepId, attempt.attempt_no) == (attempt_ref.step_id, attempt_ref.attempt_no):
                return attempt.outcome, step.status
    return None


async def _callbacks_of(env: DemoEnv, fault: Fault) -> set[str]:
    """Return the callbacks received under the attempt's lease, with their dispositions."""
    attempt_ref = env.faulted_attempts.get(fault)
    events = [event async for event in env.client.events(attempt_ref.job_id)] if attempt_ref else []
    return {
        f"{event.type} {event.data['disposition']}"
        for event in events
        if attempt_ref
        and (event.stepId, event.attempt_no) == (attempt_ref.step_id, attempt_ref.attempt_no)
        and "disposition" in event.data
    }


def show(verdict: Verdict, console: Console) -> None:
    made = Table(title="Verdict, from the ledger", title_justify="left", title_style="bold", box=None, pad_edge=False)
    made.add_column("", min_width=22)
    made.add_column("", justify="right", style="bold")
    made.add_column("", style="dim")
    made.show_header = False
    for name, number, meaning in _rows(verdict):
        made.add_row(name, str(number), meaning)
    console.print()
    console.print(made)
    for check, passed in verdict.checks.items():
        if not passed:
            console.print(Text(f"✗ failed: {check.replace('_', ' ')}", style="red"))
    console.print()
    show_answers(verdict.answers, console)
    console.print()
    console.print(_last_line(verdict), soft_wrap=True)


def _rows(verdict: Verdict) -> list[tuple[str, int, str]]:
    killed = " and ".join(verdict.restarts_survived)
    return [
        ("jobs accepted", verdict.jobs_accepted, "answered with 202"),
        ("jobs finished", verdict.jobs_finished, "ended SUCCEEDED"),
        ("jobs lost", verdict.jobs_lost, "accepted, but unfinished or missing"),
        ("outputs written", verdict.outputs_present, "files at output_ref"),
        ("submissions repeated", verdict.submissions_repeated, "answered with the existing job"),
        ("leases expired", verdict.leases_expired, "a service sent no heartbeat during a step"),
        ("ACKs missed", verdict.ack_timeouts, "a directive was pulled and not acknowledged in time"),
        ("steps run twice", verdict.steps_run_twice, f"of {verdict.steps}, because of the above"),
        ("results applied twice", verdict.results_applied_twice, "must be 0: only the current lease counts"),
        ("fenced callbacks", verdict.fenced_callbacks, "refused with 409 STALE"),
        ("duplicate callbacks", verdict.duplicate_callbacks, "recognised as repeated, nothing changed"),
        ("late callbacks", verdict.late_callbacks, "recorded after the end, nothing changed"),
        ("restarts survived", len(verdict.restarts_survived), f"kill -9 of {killed}"),
    ]


def _last_line(verdict: Verdict) -> Text:
    if verdict.ok:
        summary = f"Nothing was lost: {verdict.jobs_finished} of {verdict.jobs_accepted} jobs finished"
        return Text(f"{summary} in {verdict.seconds} s, despite the injected failures.", style="bold green")
    if verdict.jobs_lost:
        return Text(f"{verdict.jobs_lost} of {verdict.jobs_accepted} jobs were LOST.", style="bold red")
    return Text("No job was lost, but a check failed.", style="bold red")
