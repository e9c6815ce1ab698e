"""Dispatch windows that a job's directive could go through."""

import pytest

from lucius.usecases.queries.dispatch_windows import ALL_OPEN, DispatchWindows

FULL = 2


@pytest.mark.parametrize(
    ("shared", "own", "is_closed"),
    [
        (0, 0, False),
        (1, 0, False),
        (2, 0, True),
        (0, 1, False),
        (0, 2, True),
        (1, 2, False),
        (2, 1, False),
        (2, 2, True),
    ],
)
def test_job_is_shut_out_if_every_window_in_use_is_full(shared: int, own: int, is_closed: bool) -> None:
    windows = DispatchWindows({"unacked/ocr": shared, "unacked/ocr/acme": own, "unacked/ocr/b": 1}, FULL)
    assert windows.is_closed("ocr", "acme") is is_closed
    assert not windows.is_closed("sis", "acme")


def test_services_are_listed_by_whether_some_or_all_of_their_windows_are_full() -> None:
    unacked = {"unacked/ocr": 2, "unacked/sis": 2, "unacked/sis/acme": 1, "unacked/x/acme": 2, "unacked/y": 1, "z": 9}
    windows = DispatchWindows(unacked, FULL)
    assert windows.closed_for_some() == {"ocr", "sis", "x"}
    assert windows.closed_for_all() == {"ocr"}
    assert ALL_OPEN.closed_for_some() == ALL_OPEN.closed_for_all() == frozenset()
