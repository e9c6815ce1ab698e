"""Parsing of Retry-After: numbers, dates and bounds."""

import math
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from lucius.retry_after import parse_retry_after

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def in_seconds(seconds: float) -> str:
    return format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        (" ", None),
        ("soon", None),
        ("nan", None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("12.5", 12.5),
        ("-3", 0.0),
        ("inf", 86_400.0),
        ("99999999", 86_400.0),
        (in_seconds(10), 10.0),
        (in_seconds(-4), 0.0),
        (in_seconds(90_000), 86_400.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:00", 0.0),
        ("Fri, 02 Jan 2026 03:04:15", 10.0),
        ("Fri, 02 Jan 2026 04:04:15 +0100", 10.0),
    ],
)
def test_header_is_a_number_or_a_date_from_0_to_a_day(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, now=NOW.timestamp()) == seconds


@pytest.mark.parametrize("header", [None, "", "soon", "-1", "1e9", "1.5", "nan", "inf", "١٢", "²"])
def test_whole_seconds_have_digits_only(header: str | None) -> None:
    assert parse_retry_after(header, whole_only=True) is None


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), (in_seconds(10), 10.0), (in_seconds(-4), 0.0)])
def test_whole_seconds_and_dates_are_read(header: str, seconds: float) -> None:
    assert parse_retry_after(header, whole_only=True, now=NOW.timestamp()) == seconds


def test_the_caller_sets_the_maximum() -> None:
    assert parse_retry_after("301", max_seconds=300) == 300
    assert parse_retry_after("100000", max_seconds=math.inf) == 100_000


def test_dates_are_compared_with_the_wall_clock() -> None:
    seconds = parse_retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True))
    assert seconds is not None
    assert 57 < seconds <= 60


def test_dates_without_a_zone_are_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "JST-9")
        time.tzset()
        assert parse_retry_after("Fri, 02 Jan 2026 03:04:15", now=NOW.timestamp()) == 10
    time.tzset()
