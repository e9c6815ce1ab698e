"""Connections never use up the process's file descriptors."""

import resource
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from lucius.adapters.ledger.memory.store import open_memory
from lucius.bootstrap.settings import load_settings
from lucius.cli.connections import RESERVED_FILES, Connections, fit_connections
from lucius.observability.metrics import Metrics
from lucius.usecases.errors import RejectCode, Rejected
from tests.support.clock import ManualClock

NONE = resource.RLIM_INFINITY


class Limits:
    """A fake of the process's limits on open files."""

    def __init__(self, soft: int, hard: int, permitted: int | None = None) -> None:
        self.soft, self.hard = soft, hard
        self._permitted = permitted

    def get(self, which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return self.soft, self.hard

    def set(self, which: int, limits: tuple[int, int]) -> None:
        soft, hard = limits
        if self._permitted is not None and soft > self._permitted:
            raise ValueError("not permitted")
        assert hard == self.hard
        assert hard == NONE or soft <= hard
        self.soft = soft


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Limits]:
    def limit(soft: int, hard: int, permitted: int | None = None) -> Limits:
        limits = Limits(soft, hard, permitted)
        monkeypatch.setattr(resource, "getrlimit", limits.get)
        monkeypatch.setattr(resource, "setrlimit", limits.set)
        return limits

    return limit


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "expected", "raised"),
    [
        (1_024, 20_000, 4_000, 4_000, 4_000 + RESERVED_FILES),
        (1_024, NONE, 4_000, 4_000, 4_000 + RESERVED_FILES),
        (NONE, NONE, 4_000, 4_000, NONE),
        (NONE, NONE, 0, 0, NONE),
        (20_000, 20_000, 4_000, 4_000, 20_000),
        (20_000, 20_000, 0, 20_000 - RESERVED_FILES, 20_000),
        (1_024, 1_024, 4_000, 1_024 - RESERVED_FILES, 1_024),
        (256, 256, 4_000, 128, 256),
        (1_024, 1_024, 100, 100, 1_024),
    ],
)
def test_connections_leave_files_for_the_rest(
    limit: Callable[..., Limits], soft: int, hard: int, wanted: int, expected: int, raised: int
) -> None:
    limits = limit(soft, hard)
    with capture_logs() as logs:
        assert fit_connections(wanted) == expected
    assert limits.soft == raised
    assert bool(logs) is (expected < wanted)


def test_connections_are_reduced_if_the_limit_cannot_be_raised(limit: Callable[..., Limits]) -> None:
    limit(1_024, NONE, permitted=1_024)
    assert fit_connections(4_000) == 1_024 - RESERVED_FILES


def test_connections_above_what_fits_are_refused(limit: Callable[..., Limits]) -> None:
    limit(256, 256)
    limits = Connections(
        load_settings({}), Metrics(open_memory().jobs, open_memory().reviews, ManualClock()), fit_connections(4_000)
    )
    assert limits.max_lingering == 64
    for _ in range(128):
        limits.take("127.0.0.1")
    with pytest.raises(Rejected) as refused:
        limits.take("127.0.0.1")
    assert refused.value.code is RejectCode.CONNECTION_LIMIT
