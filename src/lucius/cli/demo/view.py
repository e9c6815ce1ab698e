"""Display of the demo: jobs by tenant and step, processes, and failures; in a pipe, a line for each event."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from msgspec import Struct
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lucius.cli.render import plural
from lucius.contract import JobSummary

LineStyle = Literal["plain", "bad", "good"]
MARKS: dict[LineStyle, tuple[str, str]] = {"plain": ("·", "dim"), "bad": ("✗", "red"), "good": ("✓", "green")}
STEPS = ("ocr", "embedding", "sis", "review")
ROWS_BESIDE_TICKER = 12
PROGRESS_INTERVAL_SECONDS = 3.0


class EventLine(Struct, frozen=True):
    at: float
    style: LineStyle
    text: str


class DemoDisplay:
    """Shows lines about events, and a live table of jobs and processes."""

    def __init__(self, console: Console, processes: Callable[[], list[tuple[str, bool]]]) -> None:
        self._console = console
        self._processes = processes
        self._started = time.monotonic()
        self._lines: list[EventLine] = []
        self._jobs: list[JobSummary] = []
        self._live: Live | None = None
        self._last_progress = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def print_line(self, text: str, style: LineStyle = "plain") -> None:
        line = EventLine(self.seconds, style, text)
        self._lines.append(line)
        if self._live is None:
            self._console.print(_line_text(line), soft_wrap=True)

    def show_jobs(self, jobs: list[JobSummary]) -> None:
        self._jobs = jobs
        if self._live is None and jobs and self.seconds - self._last_progress > PROGRESS_INTERVAL_SECONDS:
            self._last_progress = self.seconds
            done = sum(job.status == "SUCCEEDED" for job in jobs)
            self._console.print(f"{self.seconds:5.1f} s    {done} of {plural(len(jobs), 'job')} done", style="dim")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show a live picture on a terminal; afterwards print the whole course as lines."""
        if not self._console.is_terminal:
            yield
            return
        with Live(
            get_renderable=self._picture, console=self._console, refresh_per_second=10, transient=True
        ) as self._live:
            yield
        self._live = None
        for line in self._lines:
            self._console.print(_line_text(line), soft_wrap=True)

    def _picture(self) -> RenderableType:
        room = max(3, self._console.height - ROWS_BESIDE_TICKER)
        ticker = [_line_text(line) for line in self._lines[-room:]]
        return Group(self._heading(), Text(), self._table(), Text(), *ticker)

    def _heading(self) -> Text:
        heading = Text.assemble(("Lucius demo", "bold"), f"  {self.seconds:4.1f} s  ")
        for name, alive in self._processes():
            heading.append(f"  {name} ")
            heading.append("up" if alive else "DOWN", style="green" if alive else "bold red")
        return heading

    def _table(self) -> Table:
        made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        made.add_column("tenant", min_width=9)
        for name in ("jobs", *(f"at {step}" for step in STEPS), "retrying", "done"):
            made.add_column(name, justify="right")
        made.add_column("")
        for tenant in sorted({job.tenant_id for job in self._jobs}):
            made.add_row(*_row(tenant, [job for job in self._jobs if job.tenant_id == tenant]))
        return made


def _row(tenant: str, jobs: list[JobSummary]) -> list[RenderableType]:
    done = sum(job.status == "SUCCEEDED" for job in jobs)
    live = [job for job in jobs if job.completed_at is None]
    at = Counter(job.current_step_id for job in live)
    retrying = sum(job.blocked_on is not None and job.blocked_on.reason == "RETRY" for job in live)
    steps: list[RenderableType] = [str(at[step]) if at[step] else Text("·", style="dim") for step in STEPS]
    waiting = Text(str(retrying) if retrying else "·", style="yellow" if retrying else "dim")
    return [tenant, str(len(jobs)), *steps, waiting, str(done), ProgressBar(len(jobs), done, width=24)]


def _line_text(line: EventLine) -> Text:
    mark, style = MARKS[line.style]
    return Text.assemble((f"{line.at:5.1f} s  ", "dim"), (f"{mark} ", style), line.text)
