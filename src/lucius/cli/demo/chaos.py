"""Failures of the demo: processes are killed with SIGKILL, and a misbehaving service sends real callbacks."""

import asyncio
from pathlib import Path

import msgspec

from lucius.cli.demo.commands import Document, blob_path, review
from lucius.cli.demo.demo_env import DemoEnv, FaultedAttempt
from lucius.cli.demo.stack import CONTROL_PLANE
from lucius.cli.errors import Unsuccessful
from lucius.cli.render import plural
from lucius.cli.session import act
from lucius.client import RequestRefused
from lucius.contract import Directive, PullAnswer

KILLED_SERVICE = "ocr"
MAX_KILL_TRIES = 5
PULL_SECONDS = 10.0
SUBMIT_PAUSE_SECONDS = 0.03


async def kill_service_at_work(env: DemoEnv) -> list[str]:
    """Kill a service with SIGKILL in the middle of a step. Return the jobs that it leaves behind."""
    for _ in range(MAX_KILL_TRIES):
        await env.wait_for(lambda: env.at_work(KILLED_SERVICE), f"work for {KILLED_SERVICE}")
        pid = await env.stack.kill(KILLED_SERVICE)
        orphans = [job.jobId for job in await env.at_work(KILLED_SERVICE)]
        if orphans:
            break
        await env.stack.start(KILLED_SERVICE)  # its step had just finished: try with another one
    else:
        raise Unsuccessful(f"{KILLED_SERVICE} never had a running step")
    env.killed.append(KILLED_SERVICE)
    env.faulted_attempts["killed"] = FaultedAttempt(orphans[0], KILLED_SERVICE, 1)
    others = f" and {plural(len(orphans) - 1, 'other document')}" if len(orphans) > 1 else ""
    env.display.print_line(
        f"kill -9 service {KILLED_SERVICE} (pid {pid}) while it reads {env.title(orphans[0])}{others}", "bad"
    )
    return orphans


async def revive_service(env: DemoEnv, orphans: list[str]) -> None:
    """Wait until the killed service's leases expire, restart it, and wait until its steps are done."""
    for job_id in orphans:
        await env.wait_for_attempt_end(job_id, KILLED_SERVICE, 1)
    leases = plural(len(orphans), "lease")
    env.display.print_line(
        f"no heartbeat from {KILLED_SERVICE}: {leases} expired, attempt 2 waits for a service", "good"
    )
    child = await env.stack.start(KILLED_SERVICE)
    env.display.print_line(f"service {KILLED_SERVICE} is started again (pid {child.pid})")
    for job_id in orphans:
        attempt_no = await env.wait_for_step(job_id, KILLED_SERVICE)
        if attempt_no > 1:
            env.faulted_attempts["killed"] = FaultedAttempt(job_id, KILLED_SERVICE, 1)
            env.display.print_line(f"{env.title(job_id)} is read by attempt {attempt_no}", "good")
            return
        env.display.print_line(f"{env.title(job_id)} had been read: the result was on disk and was accepted", "good")


async def drop_ack(env: DemoEnv) -> Directive:
    """Pull a directive as the killed service, and never acknowledge it."""
    directive = await _pull(env, KILLED_SERVICE)
    env.faulted_attempts["dropped"] = _faulted_attempt(directive)
    env.display.print_line(
        f"another process pulls the directive for {env.title(directive.jobId)} as {KILLED_SERVICE} and never"
        " acknowledges it",
        "bad",
    )
    return directive


async def wait_for_ack_retry(env: DemoEnv, dropped: Directive) -> None:
    outcome = await env.wait_for_attempt_end(dropped.jobId, dropped.stepId, dropped.attempt_no)
    env.display.print_line(f"{env.title(dropped.jobId)}: attempt {dropped.attempt_no} ended with {outcome}", "good")
    attempt_no = await env.wait_for_step(dropped.jobId, dropped.stepId)
    env.display.print_line(
        f"{env.title(dropped.jobId)}: the real {KILLED_SERVICE} did it as attempt {attempt_no}", "good"
    )


async def double_callbacks(env: DemoEnv, folder: Path) -> None:
    """Act as a service whose network sends every callback twice."""
    directive = await _review_directive(env, review(folder, "memo-twice"))
    env.faulted_attempts["doubled"] = _faulted_attempt(directive)
    acks = [await _call_back(env, "ack", directive) for _ in range(2)]
    result = _write_review(directive, folder)
    results = [await _call_back(env, "result", directive, result) for _ in range(2)]
    title = env.title(directive.jobId)
    env.display.print_line(f"{title}: its service sends every callback twice", "bad")
    env.display.print_line(f"{title}: ACK {' then '.join(acks)}, RESULT {' then '.join(results)}", "good")


async def report_with_stale_lease(env: DemoEnv, folder: Path) -> None:
    """Act as a service that hangs, loses its lease, and then reports success under the old one."""
    stale = await _review_directive(env, review(folder, "memo-late"))
    env.faulted_attempts["late"] = _faulted_attempt(stale)
    await _call_back(env, "ack", stale)
    title = env.title(stale.jobId)
    env.display.print_line(f"{title}: its service hangs after the ACK, without a heartbeat", "bad")
    current = await _pull(env, "demo")
    env.display.print_line(f"{title}: the lease expired, attempt {current.attempt_no} with a new lease took over")
    env.display.print_line(
        f"{title}: attempt {stale.attempt_no} wakes up and reports success under its old lease", "bad"
    )
    verdict = await _call_back(env, "result", stale, _write_review(stale, folder))
    env.display.print_line(f"{title}: refused as {verdict}; kept in quarantine, nothing changed", "good")
    await _call_back(env, "ack", current)
    await _call_back(env, "result", current, _write_review(current, folder))
    env.display.print_line(f"{title}: finished by attempt {current.attempt_no}", "good")


async def kill_control_plane(env: DemoEnv, documents: list[Document]) -> None:
    """Kill the control plane while a client continues to submit, and restart it on the same file."""
    await env.wait_for(env.jobs, "the list of jobs")
    before = len(env.accepted)
    sending = asyncio.create_task(_submit_all(env, documents))

    async def has_answers() -> bool:
        return len(env.accepted) >= before + len(documents) // 3

    await env.wait_for(has_answers, "submissions")
    in_flight = sum(job.completed_at is None for job in await env.jobs())
    pid = await env.stack.kill(CONTROL_PLANE)
    env.killed.append(CONTROL_PLANE)
    answered = len(env.accepted) - before
    env.display.print_line(
        f"kill -9 the control plane (pid {pid}) with {plural(in_flight, 'job')} in flight, "
        f"after {answered} of {len(documents)} new submissions",
        "bad",
    )
    killed_at = env.display.seconds
    child = await env.stack.start(CONTROL_PLANE)
    await env.stack.ready()
    outage_seconds = env.display.seconds - killed_at
    env.display.print_line(
        f"the control plane is back on the same SQLite file (pid {child.pid}) after {outage_seconds:.1f} s", "good"
    )
    await sending
    env.display.print_line(
        f"the client's other {len(documents) - answered} submissions, retried until answered, are accepted", "good"
    )


async def _submit_all(env: DemoEnv, documents: list[Document]) -> None:
    for document in documents:
        await env.submit(document)
        await asyncio.sleep(SUBMIT_PAUSE_SECONDS)


async def _review_directive(env: DemoEnv, document: Document) -> Directive:
    await env.submit(document)
    return await _pull(env, "demo")


async def _pull(env: DemoEnv, service: str) -> Directive:
    """Pull one directive, as any service does."""
    path, body = f"/v1/services/{service}/directives:pull", {"max": 1, "wait_seconds": PULL_SECONDS}

    async def pull() -> Directive | None:
        _, answer = await act(env.client, path, body, PullAnswer)
        return next(iter(answer.directives), None)

    return await env.wait_for(pull, f"a directive for {service}")


async def _call_back(env: DemoEnv, kind: str, directive: Directive, body: dict[str, object] | None = None) -> str:
    """Send a callback as a service does; return its disposition or refusal."""
    callback = {
        "jobId": directive.jobId,
        "stepId": directive.stepId,
        "tenant_id": directive.tenant_id,
        "attempt_no": directive.attempt_no,
        "lease_id": directive.lease_id,
        **(body or {}),
    }
    try:
        answer = await env.client.http.post(f"/v1/callbacks/{kind}", callback, token=directive.callback_token)
    except RequestRefused as refused:
        return f"{refused.status} {refused.problem.disposition or refused.problem.code}"
    return str(msgspec.json.decode(answer)["disposition"])


def _faulted_attempt(directive: Directive) -> FaultedAttempt:
    return FaultedAttempt(directive.jobId, directive.stepId, directive.attempt_no)


def _write_review(directive: Directive, blobs: Path) -> dict[str, object]:
    """Do the review service's work: write an answer to output_ref."""
    path = blob_path(blobs, directive.output_ref)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"Approved by attempt {directive.attempt_no}: {directive.payload['question']} Yes.\n")
    return {"status": "SUCCEEDED", "result": {"approved": True}, "artifact_refs": [directive.output_ref]}
