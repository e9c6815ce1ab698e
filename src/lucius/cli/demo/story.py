"""The demo from curtain to curtain: what happens, in which order."""

import asyncio
import shutil
import tempfile
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from random import Random

from rich.console import Console

from lucius.cli import render
from lucius.cli.client import Client
from lucius.cli.demo import chaos
from lucius.cli.demo.commands import Document, documents
from lucius.cli.demo.stack import CONTROL_PLANE, SERVICES, SHORTENED, Stack, engine_env
from lucius.cli.demo.stage import Stage
from lucius.cli.demo.verdict import Verdict, judge, show
from lucius.cli.demo.view import Scene
from lucius.cli.errors import CliError, Unsuccessful
from lucius.cli.render import plural

LOOK_SECONDS = 0.2
SENT_TWICE = 3
BREATH_SECONDS = 0.6


async def tell_story(count: int, seed: int, *, as_json: bool, keep: bool, engine: str) -> None:
    """Raises Unsuccessful if anything was lost, or if something that should go wrong did not."""
    folder = Path(tempfile.mkdtemp(prefix="lucius-demo-"))
    console = render.err() if as_json else render.out()
    try:
        async with engine_env(engine, folder) as env:
            verdict = await _perform(Stack(folder, env), console, count, seed)
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


async def _perform(stack: Stack, console: Console, count: int, seed: int) -> Verdict:
    scene = Scene(console, lambda: [(name, stack.alive(name)) for name in (CONTROL_PLANE, *SERVICES)])
    async with Client(stack.to) as client:
        wanted = documents(stack.folder, count, Random(seed))
        stage = Stage(stack, client, scene, contract=wanted[0])
        looking = asyncio.create_task(_look(stage))
        try:
            with scene.running():
                await _play(stage, wanted)
            return await judge(stage, seed)
        finally:
            looking.cancel()
            await stack.stop()


async def _look(stage: Stage) -> None:
    """Keep the picture up to date, as far as someone answers."""
    while True:
        with suppress(CliError):
            stage.scene.show_jobs(await stage.jobs())
        await asyncio.sleep(LOOK_SECONDS)


async def _play(stage: Stage, wanted: list[Document]) -> None:
    third = len(wanted) // 3
    folder = stage.stack.folder
    await _start(stage)
    await _add_request_type(stage)
    await _submit(stage, wanted[:third])
    await _breathe()
    await _submit_again(stage, wanted[:SENT_TWICE])
    orphans = await chaos.kill_service_at_work(stage)
    await _breathe()
    await _submit(stage, wanted[third : 2 * third])
    dropped = await chaos.drop_ack(stage)
    await _breathe()
    await chaos.double_callbacks(stage, folder)
    await _breathe()
    await asyncio.gather(
        chaos.revive_service(stage, orphans),
        chaos.see_ack_retried(stage, dropped),
        chaos.speak_too_late(stage, folder),
    )
    await _breathe()
    await chaos.kill_control_plane(stage, wanted[2 * third :])
    await _until_all_ended(stage)


async def _breathe() -> None:
    """People read along. Nothing depends on this pause."""
    await asyncio.sleep(BREATH_SECONDS)


async def _start(stage: Stage) -> None:
    lease, ack = SHORTENED["LUCIUS_LEASE"], SHORTENED["LUCIUS_ACK_TIMEOUT"]
    stage.scene.tell(f"starting the control plane on a SQLite file; leases of {lease} s, ACKs within {ack} s")
    control_plane = await stage.stack.start(CONTROL_PLANE)
    services = [await stage.stack.start(name) for name in SERVICES]
    await stage.stack.ready()
    pids = ", ".join(f"{name} pid {child.pid}" for name, child in zip(SERVICES, services, strict=True))
    stage.scene.tell(f"control plane pid {control_plane.pid}; services {pids}")


async def _add_request_type(stage: Stage) -> None:
    """A file in the protocols folder of a running server."""
    text = (files("lucius.cli.demo") / "demo_review.yaml").read_text()
    (stage.stack.protocols / "demo_review.yaml").write_text(text)

    async def served() -> bool:
        return await stage.client.answers("/v1/protocols/DEMO_REVIEW")

    await stage.until(served, "the request type DEMO_REVIEW")
    stage.scene.tell("demo_review.yaml dropped into the protocols folder: DEMO_REVIEW is a request type now", "good")


async def _submit(stage: Stage, wanted: list[Document]) -> None:
    for document in wanted:
        await stage.submit(document)
    burst = sum(document.command.get("mode") == "BURST" for document in wanted)
    tenants = len({document.tenant for document in wanted})
    told = f"{len(wanted) - burst} in DEFAULT and {burst} in BURST mode"
    stage.scene.tell(f"{plural(len(wanted), 'document')} of {plural(tenants, 'tenant')} submitted, {told}")


async def _submit_again(stage: Stage, wanted: list[Document]) -> None:
    before = len(stage.accepted)
    for document in wanted:
        await stage.submit(document)
    if len(stage.accepted) != before:
        raise Unsuccessful("a repeated submission became a second job")
    stage.scene.tell(f"{len(wanted)} of them submitted again with the same keys: the same jobs", "good")


async def _until_all_ended(stage: Stage) -> None:
    async def ended() -> bool:
        jobs = {job.jobId: job for job in await stage.jobs()}
        return all(job_id in jobs and jobs[job_id].completed_at for job_id in stage.accepted)

    await stage.until(ended, "the last job")
    stage.scene.tell(f"all {len(stage.accepted)} jobs have ended", "good")
