"""Each case passes a correct service and fails every service with the fault that the case is about.

Cases mostly wait, so those of a module run concurrently in one test.
"""

import asyncio

import pytest

from lucius.conformance.case import Case
from lucius.conformance.cases import all_cases
from lucius.conformance.faults import FAULTS
from lucius.conformance.model import CaseReport
from tests.integration.conformance_kit.support import RIGHT, report_of, wrong

SIDE_BY_SIDE = 12


def by_module() -> dict[str, list[Case]]:
    modules: dict[str, list[Case]] = {}
    for case in all_cases():
        modules.setdefault(case.play.__module__.rpartition(".")[2], []).append(case)
    return modules


async def verdicts(pairs: list[tuple[str, str]]) -> dict[tuple[str, str], CaseReport]:
    """Return the kit's report for each case and fault (or none)."""
    places = asyncio.Semaphore(SIDE_BY_SIDE)

    async def play(case_id: str, fault: str) -> CaseReport:
        async with places:
            return await report_of(wrong(fault) if fault else RIGHT, case_id)

    reports = await asyncio.gather(*(play(case_id, fault) for case_id, fault in pairs))
    return dict(zip(pairs, reports, strict=True))


@pytest.mark.parametrize(("module", "cases"), sorted(by_module().items()), ids=sorted(by_module()))
async def test_cases_pass_the_correct_service_and_catch_each_faulty_one(module: str, cases: list[Case]) -> None:
    ids = [case.id for case in cases]
    expected = {(case_id, ""): "PASS" for case_id in ids}
    expected |= {(fault.caught_by, name): fault.outcome for name, fault in FAULTS.items() if fault.caught_by in ids}
    found = await verdicts(sorted(expected))
    missed = [
        f"{case_id} against {fault or 'the right service'}: {report.outcome} {report.seen} {report.log_tail}"
        for (case_id, fault), report in found.items()
        if report.outcome.value != expected[case_id, fault]
    ]
    assert not missed, "\n".join(missed)
    failed = [report for report in found.values() if report.outcome.value == "FAIL"]
    assert all(report.seen.startswith("expected ") and report.log_tail for report in failed)


def test_every_case_has_a_faulty_service_that_it_fails() -> None:
    assert {fault.caught_by for fault in FAULTS.values() if fault.outcome == "FAIL"} == {c.id for c in all_cases()}
