"""What goes wrong, for real: processes are killed with SIGKILL, and a badly behaved service sends real callbacks."""

import asyncio
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from lucius.cli.demo.commands import Document, review
from lucius.cli.demo.stack import CONTROL_PLANE
from lucius.cli.demo.stage import Hit, Stage
from lucius.cli.errors import Refused, Unsuccessful
from lucius.cli.render import plural
from lucius.contract import Directive, PullAnswer

VICTIM = "ocr"
TRIES = 5
PULL_SECONDS = 10.0
BETWEEN_SUBMISSIONS = 0.03


async def kill_service_at_work(stage: Stage) -> list[str]:
    """kill -9 a service in the middle of a step. Answers the jobs it leaves behind."""
    for _ in range(TRIES):
        await stage.until(lambda: stage.at_work(VICTIM), f"work for {VICTIM}")
        pid = await stage.stack.kill(VICTIM)
        orphans = [job.jobId for job in await stage.at_work(VICTIM)]
        if orphans:
            break
        await stage.stack.start(VICTIM)  # it had just finished: let it work on something else
    else:
        raise Unsuccessful(f"{VICTIM} was never caught at work")
    stage.killed.append(VICTIM)
    stage.hits["killed"] = Hit(orphans[0], VICTIM, 1)
    others = f" and {plural(len(orphans) - 1, 'other document')}" if len(orphans) > 1 else ""
    stage.scene.tell(f"kill -9 service {VICTIM} (pid {pid}) while it reads {stage.title(orphans[0])}{others}", "bad")
    return orphans


async def revive_service(stage: Stage, orphans: list[str]) -> None:
    """Its leases run out, it comes back, and what it had begun is done again."""
    for job_id in orphans:
        await stage.until_ended(job_id, VICTIM, 1)
    leases = plural(len(orphans), "lease")
    stage.scene.tell(f"no heartbeat from {VICTIM}: {leases} ran out, attempt 2 waits for someone to take it", "good")
    child = await stage.stack.start(VICTIM)
    stage.scene.tell(f"service {VICTIM} is started again (pid {child.pid})")
    for job_id in orphans:
        attempt_no = await stage.until_step_done(job_id, VICTIM)
        if attempt_no > 1:
            stage.hits["killed"] = Hit(job_id, VICTIM, 1)
            stage.scene.tell(f"{stage.title(job_id)} is read after all, by attempt {attempt_no}", "good")
            return
        stage.scene.tell(f"{stage.title(job_id)} had been read: the result was on disk, and counts", "good")


async def drop_ack(stage: Stage) -> Directive:
    """Take a directive in the dead service's place, and say nothing."""
    directive = await _pull(stage, VICTIM)
    stage.hits["dropped"] = _hit(directive)
    stage.scene.tell(
        f"someone takes the directive for {stage.title(directive.jobId)} in {VICTIM}'s name and never acknowledges it",
        "bad",
    )
    return directive


async def see_ack_retried(stage: Stage, dropped: Directive) -> None:
    outcome = await stage.until_ended(dropped.jobId, dropped.stepId, dropped.attempt_no)
    stage.scene.tell(f"{stage.title(dropped.jobId)}: attempt {dropped.attempt_no} ended with {outcome}", "good")
    attempt_no = await stage.until_step_done(dropped.jobId, dropped.stepId)
    stage.scene.tell(f"{stage.title(dropped.jobId)}: the real {VICTIM} did it as attempt {attempt_no}", "good")


async def double_callbacks(stage: Stage, folder: Path) -> None:
    """A service whose network makes two of everything."""
    directive = await _review_directive(stage, review(folder, "memo-twice"))
    stage.hits["doubled"] = _hit(directive)
    acks = [await _call_back(stage, "ack", directive) for _ in range(2)]
    result = _write_review(directive)
    results = [await _call_back(stage, "result", directive, result) for _ in range(2)]
    title = stage.title(directive.jobId)
    stage.scene.tell(f"{title}: its service sends every callback twice", "bad")
    stage.scene.tell(f"{title}: ACK {' then '.join(acks)}, RESULT {' then '.join(results)}", "good")


async def speak_too_late(stage: Stage, folder: Path) -> None:
    """A service that hangs, loses its lease, wakes up and reports success under the old one."""
    stale = await _review_directive(stage, review(folder, "memo-late"))
    stage.hits["late"] = _hit(stale)
    await _call_back(stage, "ack", stale)
    title = stage.title(stale.jobId)
    stage.scene.tell(f"{title}: its service hangs after the ACK, without a heartbeat", "bad")
    current = await _pull(stage, "demo")
    stage.scene.tell(f"{title}: the lease ran out, attempt {current.attempt_no} with a new lease took over")
    stage.scene.tell(f"{title}: attempt {stale.attempt_no} wakes up and reports success under its old lease", "bad")
    verdict = await _call_back(stage, "result", stale, _write_review(stale))
    stage.scene.tell(f"{title}: refused as {verdict}; kept in quarantine, nothing changed", "good")
    await _call_back(stage, "ack", current)
    await _call_back(stage, "result", current, _write_review(current))
    stage.scene.tell(f"{title}: finished by attempt {current.attempt_no}", "good")


async def kill_control_plane(stage: Stage, documents: list[Document]) -> None:
    """kill -9 the control plane under a client that goes on submitting, and start it on the same file."""
    await stage.until(stage.jobs, "the list of jobs")
    before = len(stage.accepted)
    sending = asyncio.create_task(_submit_all(stage, documents))

    async def some_answered() -> bool:
        return len(stage.accepted) >= before + len(documents) // 3

    await stage.until(some_answered, "submissions")
    in_flight = sum(job.completed_at is None for job in await stage.jobs())
    pid = await stage.stack.kill(CONTROL_PLANE)
    stage.killed.append(CONTROL_PLANE)
    answered = len(stage.accepted) - before
    stage.scene.tell(
        f"kill -9 the control plane (pid {pid}) with {plural(in_flight, 'job')} in flight, "
        f"after {answered} of {len(documents)} new submissions",
        "bad",
    )
    killed_at = stage.scene.seconds
    child = await stage.stack.start(CONTROL_PLANE)
    await stage.stack.ready()
    away = stage.scene.seconds - killed_at
    stage.scene.tell(f"the control plane is back on the same SQLite file (pid {child.pid}) after {away:.1f} s", "good")
    await sending
    stage.scene.tell(f"the client's other {len(documents) - answered} submissions, sent until answered, are in", "good")


async def _submit_all(stage: Stage, documents: list[Document]) -> None:
    for document in documents:
        await stage.submit(document)
        await asyncio.sleep(BETWEEN_SUBMISSIONS)


async def _review_directive(stage: Stage, document: Document) -> Directive:
    await stage.submit(document)
    return await _pull(stage, "demo")


async def _pull(stage: Stage, service: str) -> Directive:
    """One directive, as any service gets it."""
    path, body = f"/v1/services/{service}/directives:pull", {"max": 1, "wait_seconds": PULL_SECONDS}

    async def pull() -> Directive | None:
        answer = await stage.client.post(path, body)
        return next(iter(stage.client.read(answer, PullAnswer).directives), None)

    return await stage.until(pull, f"a directive for {service}")


async def _call_back(stage: Stage, kind: str, directive: Directive, body: dict[str, object] | None = None) -> str:
    """Send a callback as a service does; answers what became of it."""
    said = {
        "jobId": directive.jobId,
        "stepId": directive.stepId,
        "tenant_id": directive.tenant_id,
        "attempt_no": directive.attempt_no,
        "lease_id": directive.lease_id,
        **(body or {}),
    }
    try:
        answer = await stage.client.post(f"/v1/callbacks/{kind}", said, token=directive.callback_token)
    except Refused as refused:
        return f"{refused.status} {refused.problem.disposition or refused.problem.code}"
    return str(msgspec.json.decode(answer)["disposition"])


def _hit(directive: Directive) -> Hit:
    return Hit(directive.jobId, directive.stepId, directive.attempt_no)


def _write_review(directive: Directive) -> dict[str, object]:
    """The review service's work: an answer at output_ref."""
    path = Path(unquote(urlsplit(directive.output_ref).path))
    path.write_text(f"Approved by attempt {directive.attempt_no}: {directive.payload['question']} Yes.\n")
    return {"status": "SUCCEEDED", "result": {"approved": True}, "artifact_refs": [directive.output_ref]}
