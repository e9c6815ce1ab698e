"""Each case passes a right service and catches every service that is wrong in the way it is about."""

import asyncio

import pytest

from lucius.conformance.cases import all_cases
from lucius.conformance.faults import FAULTS
from lucius.conformance.model import CaseReport, Outcome
from tests.unit.conformance_kit.support import RIGHT, played, wrong

IDS = [case.id for case in all_cases()]
LONGEST_FIRST = [case.id for case in sorted(all_cases(), key=lambda case: -case.seconds)]


def told(report: CaseReport) -> str:
    return "\n".join([f"{report.outcome} {report.seen}", *report.log_tail])


@pytest.mark.parametrize("case_id", LONGEST_FIRST)
async def test_a_case_passes_the_right_service_and_catches_the_wrong_ones(case_id: str) -> None:
    faults = [name for name, fault in FAULTS.items() if fault.caught_by == case_id]
    right, *reports = await asyncio.gather(
        played(RIGHT, case_id), *(played(wrong(fault), case_id) for fault in faults)
    )
    assert right.outcome is Outcome.PASS, told(right)
    for fault, report in zip(faults, reports, strict=True):
        assert report.outcome is Outcome.FAIL, f"{fault} was not caught: {told(report)}"
        assert report.seen.startswith("expected "), report.seen


def test_every_case_has_a_wrong_service_and_every_wrong_service_a_case() -> None:
    assert {fault.caught_by for fault in FAULTS.values()} == set(IDS)
