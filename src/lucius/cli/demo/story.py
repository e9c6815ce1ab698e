"""Sequence of the demo."""

import asyncio
import shutil
import tempfile
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from random import Random

from rich.console import Console

from lucius.cli import render
from lucius.cli.demo import chaos
from lucius.cli.demo.commands import Document, documents
from lucius.cli.demo.demo_env import DemoEnv
from lucius.cli.demo.stack import CONTROL_PLANE, SERVICES, SHORT_TIMEOUTS, Stack, engine_env
from lucius.cli.demo.verdict import Verdict, judge, show
from lucius.cli.demo.view import DemoDisplay
from lucius.cli.errors import Unsuccessful
from lucius.cli.render import plural
from lucius.cli.session import is_answered, session
from lucius.client import LuciusError

REFRESH_SECONDS = 0.2
REPEATED_DOCUMENTS = 3
READING_PAUSE_SECONDS = 0.6


async def run_demo(count: int, seed: int, *, as_json: bool, keep: bool, engine: str) -> None:
    """Run the demo. Raises Unsuccessful if anything was lost, or if an injected failure had no effect."""
    folder = Path(tempfile.mkdtemp(prefix="lucius-demo-"))
    console = render.err() if as_json else render.out()
    try:
        async with engine_env(engine, folder) as env:
            verdict = await _run_processes(Stack(folder, env), console, count, seed)
    except asyncio.CancelledError:  # Ctrl-C
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if as_json:
        render.print_json(verdict)
    else:
        show(verdict, console)
    if not verdict.ok:
        raise Unsuccessful(f"the demo failed; ledger and logs are in {folder}")
    if keep:
        console.print(f"ledger, logs and outputs are in {folder}", soft_wrap=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


async def _run_processes(stack: Stack, console: Console, count: int, seed: int) -> Verdict:
    display = DemoDisplay(console, lambda: [(name, stack.alive(name)) for name in (CONTROL_PLANE, *SERVICES)])
    async with session(stack.to) as client:
        wanted = documents(stack.blobs, count, Random(seed))
        env = DemoEnv(stack, client, display, contract=wanted[0])
        refreshing = asyncio.create_task(_refresh_display(env))
        try:
            with display.running():
                await _run_script(env, wanted)
            return await judge(env, seed)
        finally:
            refreshing.cancel()
            await stack.stop()


async def _refresh_display(env: DemoEnv) -> None:
    """Refresh the display while the control plane answers."""
    while True:
        with suppress(LuciusError):
            env.display.show_jobs(await env.jobs())
        await asyncio.sleep(REFRESH_SECONDS)


async def _run_script(env: DemoEnv, wanted: list[Document]) -> None:
    third = len(wanted) // 3
    folder = env.stack.blobs
    await _start(env)
    await _add_request_type(env)
    await _submit(env, wanted[:third])
    await _pause_for_reading()
    await _submit_again(env, wanted[:REPEATED_DOCUMENTS])
    orphans = await chaos.kill_service_at_work(env)
    await _pause_for_reading()
    await _submit(env, wanted[third : 2 * third])
    dropped = await chaos.drop_ack(env)
    await _pause_for_reading()
    await chaos.double_callbacks(env, folder)
    await _pause_for_reading()
    await asyncio.gather(
        chaos.revive_service(env, orphans),
        chaos.wait_for_ack_retry(env, dropped),
        chaos.report_with_stale_lease(env, folder),
    )
    await _pause_for_reading()
    await chaos.kill_control_plane(env, wanted[2 * third :])
    await _wait_for_all(env)


async def _pause_for_reading() -> None:
    """Pause so that the output can be read; nothing depends on it."""
    await asyncio.sleep(READING_PAUSE_SECONDS)


async def _start(env: DemoEnv) -> None:
    lease, ack = SHORT_TIMEOUTS["LUCIUS_LEASE"], SHORT_TIMEOUTS["LUCIUS_ACK_TIMEOUT"]
    env.display.print_line(f"starting the control plane on a SQLite file; leases of {lease} s, ACKs within {ack} s")
    control_plane = await env.stack.start(CONTROL_PLANE)
    services = [await env.stack.start(name) for name in SERVICES]
    await env.stack.ready()
    pids = ", ".join(f"{name} pid {child.pid}" for name, child in zip(SERVICES, services, strict=True))
    env.display.print_line(f"control plane pid {control_plane.pid}; services {pids}")


async def _add_request_type(env: DemoEnv) -> None:
    """Put a file into the protocols folder of a running server, and wait until it is served."""
    text = (files("lucius.cli.demo") / "demo_review.yaml").read_text()
    (env.stack.protocols / "demo_review.yaml").write_text(text)

    async def served() -> bool:
        return await is_answered(env.client, "/v1/protocols/DEMO_REVIEW")

    await env.wait_for(served, "the request type DEMO_REVIEW")
    env.display.print_line("demo_review.yaml added to the protocols folder: DEMO_REVIEW is now a request type", "good")


async def _submit(env: DemoEnv, wanted: list[Document]) -> None:
    for document in wanted:
        await env.submit(document)
    burst = sum(document.command.get("mode") == "BURST" for document in wanted)
    tenants = len({document.tenant for document in wanted})
    modes = f"{len(wanted) - burst} in DEFAULT and {burst} in BURST mode"
    env.display.print_line(f"{plural(len(wanted), 'document')} of {plural(tenants, 'tenant')} submitted, {modes}")


async def _submit_again(env: DemoEnv, wanted: list[Document]) -> None:
    before = len(env.accepted)
    for document in wanted:
        await env.submit(document)
    if len(env.accepted) != before:
        raise Unsuccessful("a repeated submission became a second job")
    env.display.print_line(f"{len(wanted)} of them submitted again with the same keys: the same jobs", "good")


async def _wait_for_all(env: DemoEnv) -> None:
    async def ended() -> bool:
        jobs = {job.jobId: job for job in await env.jobs()}
        return all(job_id in jobs and jobs[job_id].completed_at for job_id in env.accepted)

    await env.wait_for(ended, "the last job")
    env.display.print_line(f"all {len(env.accepted)} jobs have ended", "good")
