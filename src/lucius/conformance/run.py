"""Puts cases on stage, a few side by side, and collects what became of them."""

import asyncio
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from lucius import __version__
from lucius.conformance import process
from lucius.conformance.book import now
from lucius.conformance.cases import Case, all_cases
from lucius.conformance.feed import check_bus
from lucius.conformance.feed_redis import check_redis
from lucius.conformance.model import (
    SCHEMA,
    CaseReport,
    Misuse,
    Options,
    Outcome,
    Pace,
    Report,
    ServiceReport,
    Verdict,
    has_passed,
)
from lucius.conformance.stage import Stage

CASE_SECONDS = 120.0
REHEARSAL = "rehearsal"

Began = Callable[[str], None]
Ended = Callable[[CaseReport], None]


def choose(ids: Sequence[str] | None) -> list[Case]:
    """The cases with these ids, or all. Raises Misuse."""
    cases = {case.id: case for case in all_cases()}
    if unknown := [name for name in ids or () if name not in cases]:
        raise Misuse(f"there is no case {unknown[0]!r}; there are {', '.join(cases)}")
    return [case for case in cases.values() if not ids or case.id in ids]


def case_seconds(pace: Pace | None) -> float:
    """How long a case may take in all: longer if its slow steps are."""
    return CASE_SECONDS + 10 * ((pace.slow_seconds if pace else None) or 0.0)


async def run(
    options: Options,
    cases: Sequence[Case],
    *,
    on_begin: Began = lambda _: None,
    on_end: Ended = lambda _: None,
    pace: Pace | None = None,
) -> Report:
    """All of them, however they end. `pace` is measured unless it is given. Raises Misuse."""
    check_bus(options.bus, options.service)
    if options.bus != "local:":
        check_redis()
    began, at = now(), datetime.now(UTC)
    with ExitStack() as stack:
        if options.keep is None:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lucius-conformance-")))
        else:
            root = options.keep
            if root.exists() and any(root.iterdir()):
                raise Misuse(f"{root} is not empty: what a service kept there from another run would mislead it")
        troupe = _Troupe(options, root.resolve(), on_begin, on_end)
        reports = await troupe.play_all(cases, pace)
    service = options.service or (troupe.pace.service if troupe.pace else None)
    step_type = options.step_type or (service.upper() if service else None)
    return Report(
        schema=SCHEMA,
        kit_version=__version__,
        started_at=at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        seconds=round(now() - began, 2),
        service=ServiceReport(name=service, step_type=step_type, command=options.command),
        strict=options.strict,
        passed=all(has_passed(report.outcome, options.strict) for report in reports),
        counts=dict(Counter(report.outcome.value for report in reports)),
        cases=reports,
    )


class _Troupe:
    def __init__(self, options: Options, root: Path, on_begin: Began, on_end: Ended) -> None:
        self.pace: Pace | None = None
        self._options = options
        self._root = root
        self._on_begin = on_begin
        self._on_end = on_end
        self._places = asyncio.Semaphore(options.side_by_side)

    async def play_all(self, cases: Sequence[Case], pace: Pace | None) -> list[CaseReport]:
        """In the order given, though the longest are begun first."""
        self.pace = pace
        if pace is None:
            self._on_begin(REHEARSAL)
            measured = await self._play(Case(id=REHEARSAL, title="", play=self._rehearse, seconds=0))
            if self.pace is None:
                return [self._not_even_started(case, measured) for case in cases]
        reports: dict[str, CaseReport] = {}

        async def play(case: Case) -> None:
            # Who mostly waits plays beside the others.
            async with nullcontext() if case.mostly_waits else self._places:
                self._on_begin(case.id)
                reports[case.id] = await self._play(case)
                self._on_end(reports[case.id])

        async with asyncio.TaskGroup() as group:
            for case in sorted(cases, key=lambda case: -case.seconds):
                group.create_task(play(case))
        return [reports[case.id] for case in cases]

    async def _rehearse(self, stage: Stage) -> str:
        """Learn what the service is called and how long it works. What it gets wrong is for the cases to say."""
        await stage.start()
        assert stage.server.service is not None
        self.pace = pace = Pace(service=stage.server.service)
        attempt = stage.send(stage.make())
        if not await stage.until(lambda: attempt.results, self._options.patience):
            return ""
        self.pace = pace = replace(pace, work_seconds=attempt.results[0].at - attempt.first_handed_over)
        if self._options.slow_payload is not None:
            slow = stage.send(stage.make(payload=self._options.slow_payload))
            await stage.until(lambda: slow.results, 60.0)
            seconds = slow.results[0].at - slow.first_handed_over if slow.results else 60.0
            self.pace = replace(pace, slow_seconds=max(0.1, seconds))
        return ""

    async def _play(self, case: Case) -> CaseReport:
        folder = self._root / case.id
        folder.mkdir(parents=True, exist_ok=True)
        stage = Stage(self._options, self.pace, folder)
        began = now()
        surprise: list[str] = []
        try:
            outcome, seen = await self._outcome(case, stage)
        except Exception as error:  # noqa: BLE001 - what we did not foresee costs its case, not the run
            outcome, seen = Outcome.FAIL, f"expected no surprise; the kit itself met {type(error).__name__}: {error}"
            surprise = ["the kit's own traceback:", *"".join(traceback.format_exception(error)).splitlines()]
        if outcome is Outcome.PASS and stage.warnings:
            outcome, seen = Outcome.WARN, "; ".join(stage.warnings)
        bad = outcome in (Outcome.FAIL, Outcome.NOT_SHOWN)
        return CaseReport(
            id=case.id,
            title=case.title,
            outcome=outcome,
            seconds=round(now() - began, 2),
            seen=seen,
            warnings=list(stage.warnings),
            read=case.read,
            log_tail=[*process.tail(stage.log), *surprise] if bad else [],
        )

    async def _outcome(self, case: Case, stage: Stage) -> tuple[Outcome, str]:
        seconds = case_seconds(self.pace)
        if case.about_pulls and not stage.feed.pulled_over_http:
            return Outcome.SKIPPED, "it is about pulls over HTTP, and there are none on this bus"
        try:
            await stage.open()
            async with asyncio.timeout(seconds):
                seen = await case.play(stage)
                stage.check_manners()
                stage.check_words()
        except Verdict as verdict:
            return verdict.outcome, str(verdict)
        except TimeoutError:
            return Outcome.FAIL, f"expected an end; the case still ran after {seconds:.0f} s"
        finally:
            await stage.close()
        return Outcome.PASS, seen

    def _not_even_started(self, case: Case, rehearsal: CaseReport) -> CaseReport:
        report = replace(rehearsal, id=case.id, title=case.title, read=case.read, seconds=0.0)
        self._on_end(report)
        return report
