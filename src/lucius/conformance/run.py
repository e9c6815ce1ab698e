"""Plays cases, a few at a time, and collects their reports."""

import asyncio
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from lucius.conformance import process
from lucius.conformance.attempt_log import now
from lucius.conformance.buses import check_bus, check_bus_packages
from lucius.conformance.case import Case
from lucius.conformance.case_env import CaseEnv, no_result, require_success
from lucius.conformance.cases import all_cases
from lucius.conformance.model import (
    SCHEMA,
    CaseFailed,
    CaseOutcome,
    CaseReport,
    Misuse,
    Options,
    Pace,
    Report,
    ServiceReport,
    Verdict,
    has_passed,
)
from lucius.version import __version__

CASE_SECONDS = 120.0
REHEARSAL = "rehearsal"

OnCaseBegin = Callable[[str], None]
OnCaseEnd = Callable[[CaseReport], None]


def choose(ids: Sequence[str] | None) -> list[Case]:
    """Return the cases with these ids, or all. Raises Misuse for an unknown id."""
    cases = {case.id: case for case in all_cases()}
    if unknown := [name for name in ids or () if name not in cases]:
        raise Misuse(f"there is no case {unknown[0]!r}; the cases are {', '.join(cases)}")
    return [case for case in cases.values() if not ids or case.id in ids]


def case_seconds(pace: Pace | None) -> float:
    """Return the time limit of a case in seconds, which grows with the duration of its steps."""
    return CASE_SECONDS + (10 * max(pace.slow_seconds or 0.0, pace.work_seconds) if pace else 0.0)


async def run(
    options: Options,
    cases: Sequence[Case],
    *,
    on_begin: OnCaseBegin = lambda _: None,
    on_end: OnCaseEnd = lambda _: None,
    pace: Pace | None = None,
) -> Report:
    """Play all cases and return the report. `pace` is measured unless it is given. Raises Misuse."""
    check_bus(options.bus, options.service)
    check_bus_packages(options.bus)
    began, at = now(), datetime.now(UTC)
    with ExitStack() as stack:
        if options.keep is None:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lucius-conformance-")))
        else:
            root = options.keep
            if root.exists() and any(root.iterdir()):
                raise Misuse(f"{root} is not empty: files of another run would mislead the service")
        runner = _CaseRunner(options, root.resolve(), on_begin, on_end)
        reports = await runner.play_all(cases, pace)
    service = options.service or (runner.pace.service if runner.pace else None)
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


class _CaseRunner:
    """Plays the cases of one run concurrently, after a rehearsal that measures the service."""

    def __init__(self, options: Options, root: Path, on_begin: OnCaseBegin, on_end: OnCaseEnd) -> None:
        self.pace: Pace | None = None
        self._options = options
        self._root = root
        self._on_begin = on_begin
        self._on_end = on_end
        self._places = asyncio.Semaphore(options.side_by_side)
        self._obstacle = "the service does not start and pull"
        """Why every case would fail in the same way; empty if the cases can be played."""

    async def play_all(self, cases: Sequence[Case], pace: Pace | None) -> list[CaseReport]:
        """Play the cases, longest first; return their reports in the given order."""
        self.pace = pace
        if pace is None:
            self._on_begin(REHEARSAL)
            measured = await self._play(Case(id=REHEARSAL, title="", play=self._rehearse, seconds=0))
            if self._obstacle:
                return [self._not_played(case, measured, first=case is cases[0]) for case in cases]
        reports: dict[str, CaseReport] = {}

        async def play(case: Case) -> None:
            # Cases that mostly wait do not count towards the limit.
            async with nullcontext() if case.mostly_waits else self._places:
                self._on_begin(case.id)
                reports[case.id] = await self._play(case)
                self._on_end(reports[case.id])

        async with asyncio.TaskGroup() as group:
            for case in sorted(cases, key=lambda case: -case.seconds):
                group.create_task(play(case))
        return [reports[case.id] for case in cases]

    async def _rehearse(self, env: CaseEnv) -> str:
        """Measure the pace and learn the service's name. Contract violations are left to the cases to report."""
        await env.start()
        assert env.server.service is not None
        self.pace = pace = Pace(service=env.server.service)
        self._obstacle = ""
        attempt = env.send(env.make())
        try:
            if not await env.wait_until(lambda: attempt.results, self._options.patience):
                raise no_result(attempt, self._options.patience)
            require_success(attempt)
        except CaseFailed:
            if not env.violations():
                self._obstacle = "the service can't execute a plain step"
            raise
        self.pace = pace = replace(pace, work_seconds=attempt.results[0].at - attempt.first_handed_over)
        if self._options.slow_payload is not None:
            slow = env.send(env.make(payload=self._options.slow_payload))
            await env.wait_until(lambda: slow.results, 60.0)
            seconds = slow.results[0].at - slow.first_handed_over if slow.results else 60.0
            self.pace = replace(pace, slow_seconds=max(0.1, seconds))
        return ""

    async def _play(self, case: Case) -> CaseReport:
        folder = self._root / case.id
        folder.mkdir(parents=True, exist_ok=True)
        env = CaseEnv(self._options, self.pace, folder)
        began = now()
        internal_error: list[str] = []
        try:
            outcome, seen = await self._outcome(case, env)
        except Exception as error:  # noqa: BLE001 - an error of the kit fails its case, not the run
            outcome, seen = CaseOutcome.FAIL, f"expected no error of the kit; it raised {type(error).__name__}: {error}"
            internal_error = ["the kit's own traceback:", *"".join(traceback.format_exception(error)).splitlines()]
        if outcome is CaseOutcome.PASS and env.warnings:
            outcome, seen = CaseOutcome.WARN, "; ".join(env.warnings)
        bad = outcome in (CaseOutcome.FAIL, CaseOutcome.NOT_SHOWN)
        return CaseReport(
            id=case.id,
            title=case.title,
            outcome=outcome,
            seconds=round(now() - began, 2),
            seen=seen,
            warnings=list(env.warnings),
            read=case.read,
            log_tail=[*process.tail(env.log), *internal_error] if bad else [],
        )

    async def _outcome(self, case: Case, env: CaseEnv) -> tuple[CaseOutcome, str]:
        seconds = case_seconds(self.pace)
        if case.about_pulls and not env.feed.pulled_over_http:
            return CaseOutcome.SKIPPED, "it tests pulls over HTTP, and this bus has none"
        try:
            await env.open()
            async with asyncio.timeout(seconds):
                seen = await case.play(env)
                env.check_contract()
                env.warn_unclassified_failures()
        except Verdict as verdict:
            return verdict.outcome, str(verdict)
        except TimeoutError:
            return CaseOutcome.FAIL, f"expected the case to end; it still ran after {seconds:.0f} s"
        finally:
            await env.close()
        return CaseOutcome.PASS, seen

    def _not_played(self, case: Case, rehearsal: CaseReport, *, first: bool) -> CaseReport:
        """Report a case that was not played: the first one carries the rehearsal's failure, the others are SKIPPED."""
        report = replace(rehearsal, id=case.id, title=case.title, read=case.read)
        if not first:
            seen = f"not played: {self._obstacle}"
            report = replace(report, outcome=CaseOutcome.SKIPPED, seen=seen, seconds=0.0, log_tail=[], warnings=[])
        self._on_end(report)
        return report
