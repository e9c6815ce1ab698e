"""Every example protocol on the Temporal engine: the same tests as for the embedded one."""

import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tests.conformance.test_examples_run import (  # noqa: F401
    World,
    open_world,
    test_early_signature_is_kept_and_a_missing_one_times_out,
    test_first_failed_check_cancels_the_others,
    test_forbidden_transition_is_not_retried,
    test_large_invoice_needs_two_different_approvers,
    test_loop_polls_until_it_is_done,
    test_pages_are_read_one_by_one_and_failures_are_collected,
    test_passed_checks_are_joined,
    test_small_invoice_is_posted_without_approval,
    test_uncertain_payment_is_undone_in_reverse_order,
    test_undecided_approval_is_escalated_and_can_be_rejected,
)
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import serving_over

pytestmark = pytest.mark.usefixtures("each_fastpath")

DAYS = re.compile(r"^(    timeout_ms: )\d{8,}", re.MULTILINE)
PAUSES = re.compile(r"(duration_ms: )\d+")


def soon(text: str) -> str:
    """Shorten days to moments, since Temporal's timers run in real time."""
    return PAUSES.sub(r"\g<1>300", DAYS.sub(r"\g<1>2000", text))


@pytest.fixture
async def world(ledger_url: str, tmp_path: Path, temporal_server: TemporalServer) -> AsyncIterator[World]:
    async with open_world(tmp_path, ledger_url, partial(serving_over, server=temporal_server), soon) as opened:
        yield opened
