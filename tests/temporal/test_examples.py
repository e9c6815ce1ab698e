"""Every example protocol on the Temporal engine: the same tests as for the embedded one."""

import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tests.conformance.test_examples_run import (  # noqa: F401
    World,
    open_world,
    test_a_forbidden_transition_is_not_tried_again,
    test_a_large_invoice_needs_two_different_people,
    test_a_loop_asks_until_it_is_done,
    test_a_payment_whose_outcome_is_unknown_is_undone_last_first,
    test_a_signature_that_comes_early_is_kept_and_one_that_never_comes_times_out,
    test_a_small_invoice_is_posted_without_asking_anybody,
    test_checks_that_all_pass_are_joined,
    test_pages_are_read_one_by_one_and_what_failed_is_collected,
    test_the_first_check_that_fails_ends_the_others,
    test_what_nobody_decides_is_escalated_and_can_be_rejected,
)
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import serving_over

DAYS = re.compile(r"^(    timeout_ms: )\d{8,}", re.MULTILINE)
PAUSES = re.compile(r"(duration_ms: )\d+")


def soon(text: str) -> str:
    """What takes days takes a moment: the timers are Temporal's, and those are real."""
    return PAUSES.sub(r"\g<1>300", DAYS.sub(r"\g<1>2000", text))


@pytest.fixture
async def world(ledger_url: str, tmp_path: Path, temporal_server: TemporalServer) -> AsyncIterator[World]:
    async with open_world(tmp_path, ledger_url, partial(serving_over, server=temporal_server), soon) as opened:
        yield opened
