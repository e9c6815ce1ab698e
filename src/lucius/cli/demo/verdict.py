"""Whether anything was lost, and whether everything that should go wrong did: read from the ledger over the API."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct, field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lucius.cli.client import Client
from lucius.cli.demo.answers import Found, answers_in, reads_scans, show_answers
from lucius.cli.demo.stack import CONTROL_PLANE
from lucius.cli.demo.stage import Harm, Stage
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
    answers: list[Found] = field(default_factory=list)
    checks: dict[str, bool] = field(default_factory=dict)
    ok: bool = False


async def judge(stage: Stage, seed: int) -> Verdict:
    jobs = {job.jobId: job for job in await stage.jobs()}
    lost = [job_id for job_id in stage.accepted if not _finished(jobs.get(job_id))]
    verdict = Verdict(
        seed=seed,
        seconds=round(stage.scene.seconds, 1),
        jobs_accepted=len(stage.accepted),
        jobs_in_ledger=len(jobs),
        jobs_finished=sum(_finished(job) for job in jobs.values()),
        jobs_lost=len(lost),
        lost=lost,
        commands=len(stage.commands),
        submissions_repeated=stage.repeats,
        restarts_survived=list(stage.killed),
    )
    for job_id in jobs:
        await _add_job(verdict, stage.client, job_id)
    verdict.outputs_present = sum(_has_output(document.command["output_ref"]) for document in stage.accepted.values())
    verdict.answers = answers_in(stage.contract)
    verdict.checks = _checks(verdict) | await _effects(stage)
    verdict.ok = all(verdict.checks.values())
    return verdict


def _finished(job: JobSummary | None) -> bool:
    return job is not None and job.status == "SUCCEEDED"


async def _add_job(verdict: Verdict, client: Client, job_id: str) -> None:
    events = await client.events(job_id)
    for step in (await client.steps(job_id)).steps:
        _add_step(verdict, step, [event for event in events if event.stepId == step.stepId])


def _add_step(verdict: Verdict, step: StepWithAttempts, events: list[EventView]) -> None:
    said = [event.data["disposition"] for event in events if "disposition" in event.data]
    successes = [event for event in events if event.type == "CALLBACK_RESULT" and "failure_class" not in event.data]
    applied = [event for event in successes if event.data["disposition"] == "APPLIED"]
    verdict.steps += 1
    verdict.steps_run_twice += sum(attempt.acked_at is not None for attempt in step.attempts) > 1
    verdict.results_applied_twice += len(applied) > 1
    verdict.fenced_callbacks += said.count("STALE")
    verdict.duplicate_callbacks += said.count("DUPLICATE")
    verdict.late_callbacks += said.count("LATE")
    verdict.quarantined_results += sum(attempt.quarantined is not None for attempt in step.attempts)
    verdict.ack_timeouts += sum(attempt.outcome == "ACK_TIMEOUT" for attempt in step.attempts)
    verdict.leases_expired += sum(attempt.outcome == "LEASE_EXPIRED" for attempt in step.attempts)


def _has_output(ref: str) -> bool:
    path = Path(unquote(urlsplit(ref).path))
    return path.is_file() and path.stat().st_size > 0


def _checks(verdict: Verdict) -> dict[str, bool]:
    """Nothing lost and nothing doubled."""
    return {
        "nothing_lost": verdict.jobs_lost == 0 and verdict.jobs_accepted > 0,
        "one_job_per_command": verdict.commands == verdict.jobs_accepted == verdict.jobs_in_ledger,
        "all_outputs_written": verdict.outputs_present == verdict.jobs_accepted,
        "no_result_applied_twice": verdict.results_applied_twice == 0,
        "repeats_recognised": verdict.submissions_repeated > 0,
        "control_plane_came_back": CONTROL_PLANE in verdict.restarts_survived,
        "contract_read": all(answer.right for answer in verdict.answers if not answer.scanned or reads_scans()),
    }


async def _effects(stage: Stage) -> dict[str, bool]:
    """None of the failures left out: each attempt that was harmed shows it in the ledger, and its step is done."""
    killed, dropped = await _outcome(stage, "killed"), await _outcome(stage, "dropped")
    doubled, late = await _said(stage, "doubled"), await _said(stage, "late")
    return {
        "killed_step_retried": killed == ("LEASE_EXPIRED", "SUCCEEDED"),
        "dropped_ack_retried": dropped == ("ACK_TIMEOUT", "SUCCEEDED"),
        "doubled_callbacks_recognised": {"CALLBACK_ACK DUPLICATE", "CALLBACK_RESULT DUPLICATE"} <= doubled,
        "stale_lease_refused": "CALLBACK_RESULT STALE" in late and "CALLBACK_RESULT APPLIED" not in late,
    }


async def _outcome(stage: Stage, harm: Harm) -> tuple[str | None, str] | None:
    """How the attempt ended, and what became of its step."""
    hit = stage.hits.get(harm)
    for step in (await stage.client.steps(hit.job_id)).steps if hit else ():
        for attempt in step.attempts:
            if hit and (step.stepId, attempt.attempt_no) == (hit.step_id, hit.attempt_no):
                return attempt.outcome, step.status
    return None


async def _said(stage: Stage, harm: Harm) -> set[str]:
    """What was said under the attempt's lease, and what was made of it."""
    hit = stage.hits.get(harm)
    events = await stage.client.events(hit.job_id) if hit else []
    return {
        f"{event.type} {event.data['disposition']}"
        for event in events
        if hit and (event.stepId, event.attempt_no) == (hit.step_id, hit.attempt_no) and "disposition" in event.data
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
            console.print(Text(f"✗ not so: {check.replace('_', ' ')}", style="red"))
    console.print()
    show_answers(verdict.answers, console)
    console.print()
    console.print(_last_line(verdict), soft_wrap=True)


def _rows(verdict: Verdict) -> list[tuple[str, int, str]]:
    killed = " and ".join(verdict.restarts_survived)
    return [
        ("jobs accepted", verdict.jobs_accepted, "answered with 202"),
        ("jobs finished", verdict.jobs_finished, "ended SUCCEEDED"),
        ("jobs lost", verdict.jobs_lost, "accepted, and not finished or not there"),
        ("outputs written", verdict.outputs_present, "files at output_ref"),
        ("submissions repeated", verdict.submissions_repeated, "answered with the job that was already there"),
        ("leases run out", verdict.leases_expired, "a service went silent during a step"),
        ("ACKs missed", verdict.ack_timeouts, "a directive was taken and not acknowledged in time"),
        ("steps run twice", verdict.steps_run_twice, f"of {verdict.steps}, because of the above"),
        ("results applied twice", verdict.results_applied_twice, "must be 0: only the current lease counts"),
        ("fenced callbacks", verdict.fenced_callbacks, "refused with 409 STALE"),
        ("duplicate callbacks", verdict.duplicate_callbacks, "recognised as said before, nothing changed"),
        ("late callbacks", verdict.late_callbacks, "recorded after the end, nothing changed"),
        ("restarts survived", len(verdict.restarts_survived), f"kill -9 of {killed}"),
    ]


def _last_line(verdict: Verdict) -> Text:
    if verdict.ok:
        told = f"Nothing was lost: {verdict.jobs_finished} of {verdict.jobs_accepted} jobs finished"
        return Text(f"{told} in {verdict.seconds} s, whatever went wrong.", style="bold green")
    if verdict.jobs_lost:
        return Text(f"{verdict.jobs_lost} of {verdict.jobs_accepted} jobs were LOST.", style="bold red")
    return Text("No job was lost, but the demo did not show all it should.", style="bold red")
