"""Commands that archive finished jobs: `retention run` and `retention show`. They need no server."""

import secrets
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from lucius.cli import render
from lucius.cli.connection import GlobalOptions
from lucius.cli.durations import AGE_UNITS_MS, parse_duration
from lucius.cli.errors import Misused, Unsuccessful, run
from lucius.cli.job_ids import MAX_CANDIDATES, id_prefix, only_id
from lucius.cli.jobs import JobId
from lucius.cli.serve import DataDir
from lucius.cli.session import AsJson

if TYPE_CHECKING:
    from lucius.bootstrap.settings import Settings
    from lucius.usecases.retention.retention import Summary

retention = typer.Typer(
    help="Archive finished jobs, delete them from the ledger, and read the archive.", no_args_is_help=True
)

ArchiveDir = Annotated[
    Path | None, typer.Option("--archive", help="Folder of the archive; by default lucius/_archive in the workspace")
]
SHARED_LEDGER_PAUSE_SECONDS = 0.5
PROGRESS_INTERVAL_SECONDS = 2.0


class Ended(StrEnum):
    SUCCEEDED = "SUCCEEDED"
    FAILED_FINAL = "FAILED_FINAL"
    CANCELLED = "CANCELLED"


@retention.command("run")
def run_(
    ctx: typer.Context,
    older_than: Annotated[str, typer.Option(help="Minimum time since a job ended: 30d, 12h, 90m")] = "30d",
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant")] = None,
    status: Annotated[Ended | None, typer.Option(help="Only with this status", case_sensitive=False)] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of jobs", min=1)] = None,
    batch: Annotated[int, typer.Option(help="Jobs per file and transaction", min=1, max=10_000)] = 500,
    pause: Annotated[
        float | None,
        typer.Option(help="Seconds between batches; by default 0.5 if the ledger is shared, else 0", min=0),
    ] = None,
    gzip: Annotated[bool, typer.Option("--gzip", help="Compress the files")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be archived")] = False,
    archive: ArchiveDir = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write finished jobs to the archive as JSON lines, and delete them from the ledger.

    May be killed at any time: the next run continues. On SQLite no server may be running.
    """

    async def work() -> None:
        from lucius.bootstrap.adapters import open_archive, open_finished_jobs  # noqa: PLC0415
        from lucius.core.model.statuses import JobStatus  # noqa: PLC0415
        from lucius.ports.archive import FinishedFilter  # noqa: PLC0415
        from lucius.ports.clock import SystemClock  # noqa: PLC0415
        from lucius.usecases.retention.retention import Order, Retention  # noqa: PLC0415
        from lucius.usecases.timestamps import timestamp  # noqa: PLC0415

        settings, clock = _settings(ctx, data_dir), SystemClock()
        before = clock.now() - _minimum_age_ms(older_than)
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
                summary = await Retention(jobs, files, clock.now(), secrets.token_hex(4), _ProgressPrinter()).run(order)
        if as_json:
            run_info = {"dry_run": dry_run, "ended_before": timestamp(before), "archive": files.place}
            render.print_json(run_info | msgspec.to_builtins(summary))
        else:
            _print_summary(summary, files.place, dry_run)

    run(work)


@retention.command("show")
def show(ctx: typer.Context, job: JobId, archive: ArchiveDir = None, data_dir: DataDir = None) -> None:
    """Print an archived job as JSON and verify its history. Exit code 1 if it was changed."""

    async def work() -> None:
        from lucius.bootstrap.adapters import open_archive  # noqa: PLC0415
        from lucius.usecases.retention.retention import find, find_ids, read, verify  # noqa: PLC0415

        with open_archive(_settings(ctx, data_dir), archive, writing=False) as files:
            prefix = id_prefix(job)
            job_id = job if prefix is None else only_id(prefix, await find_ids(files, prefix, MAX_CANDIDATES + 1))
            found = await find(files, job_id)
            if found is None:
                raise Unsuccessful(f"job {job_id} is not in {files.place}")
        name, line = found
        render.print_json(line)
        chain = verify(read(name, line))
        for broken in chain.breaks:
            render.err().print(f"event {broken.seq} {broken.what}", style="red", soft_wrap=True)
        if chain.breaks:
            raise Unsuccessful(f"the history of job {job_id} in {name} was tampered with")
        render.err().print(f"{name}: {render.plural(chain.events, 'event')}, all unchanged", soft_wrap=True)

    run(work)


def _minimum_age_ms(text: str) -> int:
    """Parse `--older-than`, whose unit must be given: the command deletes. Raises Misused."""
    age_ms = parse_duration(text, AGE_UNITS_MS)
    if age_ms is None:
        raise Misused(f"--older-than must be a number with s, m, h, d or w, for example 30d, not {text!r}")
    return age_ms


def _settings(ctx: typer.Context, data_dir: Path | None) -> "Settings":
    from lucius.bootstrap.settings import load_settings  # noqa: PLC0415

    return load_settings(data_dir=data_dir or ctx.ensure_object(GlobalOptions).data_dir)


def _pause(settings: "Settings", seconds: float | None) -> float:
    from lucius.bootstrap.settings import ONE_PROCESS_LEDGERS  # noqa: PLC0415

    if seconds is not None:
        return seconds
    return 0.0 if settings.ledger_url.partition(":")[0] in ONE_PROCESS_LEDGERS else SHARED_LEDGER_PAUSE_SECONDS


class _ProgressPrinter:
    """Prints the progress of a long run on stderr."""

    def __init__(self) -> None:
        self._printed_at = time.monotonic()

    def __call__(self, summary: "Summary") -> None:
        if time.monotonic() - self._printed_at >= PROGRESS_INTERVAL_SECONDS:
            self._printed_at = time.monotonic()
            render.err().print(f"{render.plural(summary.archived, 'job')}, {_size(summary.bytes)} so far")


def _print_summary(summary: "Summary", place: str, dry_run: bool) -> None:
    size, into = _size(summary.bytes), render.plural(len(summary.files), "file")
    jobs = render.plural(summary.archived, "job")
    lines = [f"{jobs} ({size}) would be archived" if dry_run else f"{jobs} archived: {size} in {into} under {place}"]
    if summary.resumed:
        lines.append(f"{summary.resumed} of them had been archived by an interrupted run")
    for n, why in (
        (summary.open_reviews, "an open review item: close it with `lucius review`"),
        (summary.pending_webhooks, "an undelivered webhook"),
        (summary.moved_on, "changes since they were read"),
        (summary.unreadable, f"rows that can't be read: {', '.join(summary.unreadable_jobs)}"),
    ):
        if n:
            lines.append(f"{render.plural(n, 'job')} kept, with {why}")
    for line in lines:
        render.out().print(line, soft_wrap=True)


def _size(n: int) -> str:
    return f"{n / 1_000:.1f} kB" if n < 1_000_000 else f"{n / 1_000_000:.1f} MB"
