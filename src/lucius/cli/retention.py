"""Commands about finished jobs: `retention run` and `retention show`, which need no server."""

import re
import secrets
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from lucius.cli import render
from lucius.cli.connection import Options
from lucius.cli.errors import Misused, Unsuccessful, run
from lucius.cli.jobs import AsJson, JobId
from lucius.cli.serve import DataDir
from lucius.core.model import JobStatus, Millis
from lucius.ports.archive import FinishedFilter
from lucius.ports.clock import SystemClock
from lucius.service.retention import Order, Retention, Summary, find, read, verify
from lucius.service.timestamps import timestamp
from lucius.settings import ONE_PROCESS_LEDGERS, Settings, load_settings

retention = typer.Typer(help="Archive finished jobs, drop them from the ledger, find them again.", no_args_is_help=True)

ArchiveDir = Annotated[
    Path | None, typer.Option("--archive", help="Folder of the archive; lucius/_archive in the workspace if absent")
]
UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
SHARED_PAUSE = 0.5
TOLD_EVERY = 2.0


class Ended(StrEnum):
    SUCCEEDED = "SUCCEEDED"
    FAILED_FINAL = "FAILED_FINAL"
    CANCELLED = "CANCELLED"


@retention.command("run")
def run_(
    ctx: typer.Context,
    older_than: Annotated[str, typer.Option(help="How long ago a job must have ended: 30d, 12h, 90m")] = "30d",
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's")] = None,
    status: Annotated[Ended | None, typer.Option(help="Only those that ended like this", case_sensitive=False)] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many jobs", min=1)] = None,
    batch: Annotated[int, typer.Option(help="Jobs in one file and one transaction", min=1, max=10_000)] = 500,
    pause: Annotated[
        float | None, typer.Option(help="Seconds between batches; 0.5 if absent where servers may be at work", min=0)
    ] = None,
    gzip: Annotated[bool, typer.Option("--gzip", help="Compress the files")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be archived")] = False,
    archive: ArchiveDir = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write finished jobs to the archive as JSON lines, and drop them from the ledger.

    May be killed at any time: the next run goes on. On SQLite no server may be running.
    """

    async def work() -> None:
        from lucius.wiring.adapters import open_archive, open_finished_jobs  # noqa: PLC0415

        settings, clock = _settings(ctx, data_dir), SystemClock()
        before = clock.now() - duration(older_than)
        order = Order(
            where=FinishedFilter(
                before=before,
                tenant_id=tenant.strip().lower() if tenant else None,
                status=JobStatus(status) if status else None,
            ),
            limit=limit,
            batch=batch,
            pause=_pause(settings, pause),
            gzip=gzip,
            dry_run=dry_run,
        )
        async with open_finished_jobs(settings) as jobs:
            with open_archive(settings, archive, writing=not dry_run) as files:
                summary = await Retention(jobs, files, clock.now(), secrets.token_hex(4), _Teller()).run(order)
        if as_json:
            told = {"dry_run": dry_run, "ended_before": timestamp(before), "archive": files.place}
            render.print_json(told | msgspec.to_builtins(summary))
        else:
            _sum_up(summary, files.place, dry_run)

    run(work)


@retention.command("show")
def show(ctx: typer.Context, job_id: JobId, archive: ArchiveDir = None, data_dir: DataDir = None) -> None:
    """Print an archived job as JSON, and check its history. Exit code 1 if it is not as it was written."""

    async def work() -> None:
        from lucius.wiring.adapters import open_archive  # noqa: PLC0415

        with open_archive(_settings(ctx, data_dir), archive, writing=False) as files:
            found = await find(files, job_id)
            if found is None:
                raise Unsuccessful(f"there is no job {job_id} in {files.place}")
        name, line = found
        render.print_json(line)
        chain = verify(read(name, line))
        for broken in chain.breaks:
            render.err().print(f"event {broken.seq} {broken.what}", style="red", soft_wrap=True)
        if chain.breaks:
            raise Unsuccessful(f"the history of job {job_id} in {name} was tampered with")
        render.err().print(f"{name}: {render.plural(chain.events, 'event')}, all as they were written", soft_wrap=True)

    run(work)


def duration(text: str) -> Millis:
    """Raises Misused."""
    parts = re.fullmatch(r"(\d{1,9})([smhdw])|0", text.strip())
    if parts is None:
        raise Misused(f"--older-than must be a number with s, m, h, d or w, as in 30d, and is {text!r}")
    return int(parts[1]) * UNITS[parts[2]] if parts[1] else 0


def _settings(ctx: typer.Context, data_dir: Path | None) -> Settings:
    return load_settings(data_dir=data_dir or ctx.ensure_object(Options).data_dir)


def _pause(settings: Settings, given: float | None) -> float:
    if given is not None:
        return given
    return 0.0 if settings.ledger_url.partition(":")[0] in ONE_PROCESS_LEDGERS else SHARED_PAUSE


class _Teller:
    """A line on stderr now and then, so that a long run is seen to move."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, summary: Summary) -> None:
        if time.monotonic() - self._told >= TOLD_EVERY:
            self._told = time.monotonic()
            render.err().print(f"{render.plural(summary.archived, 'job')}, {_size(summary.bytes)} so far")


def _sum_up(summary: Summary, place: str, dry_run: bool) -> None:
    size, into = _size(summary.bytes), render.plural(len(summary.files), "file")
    jobs = render.plural(summary.archived, "job")
    lines = [f"{jobs} ({size}) would be archived" if dry_run else f"{jobs} archived: {size} in {into} under {place}"]
    if summary.resumed:
        lines.append(f"{summary.resumed} of them had been written by a run that did not get to drop them")
    for n, why in (
        (summary.open_reviews, "an open review item: close it with `lucius review`"),
        (summary.pending_notices, "a webhook that is still to be sent"),
        (summary.moved_on, "changes since they were read: they were retried or called back"),
        (summary.unreadable, f"rows that can't be read: {', '.join(summary.unreadable_jobs)}"),
    ):
        if n:
            lines.append(f"{render.plural(n, 'job')} stay, with {why}")
    for line in lines:
        render.out().print(line, soft_wrap=True)


def _size(n: int) -> str:
    return f"{n / 1_000:.1f} kB" if n < 1_000_000 else f"{n / 1_000_000:.1f} MB"
