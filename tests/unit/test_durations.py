"""Durations of command-line options."""

import pytest

from lucius.cli.durations import AGE_UNITS_MS, parse_duration


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("1.5s", 1_500),
        ("10m", 600_000),
        ("10min", 600_000),
        (" 2 h ", 7_200_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        ("0", 0),
        ("0d", 0),
        ("999999999w", 604_799_999_395_200_000),
    ],
)
def test_duration_is_a_number_with_a_unit(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text", ["", "soon", "90", "-1s", "1y", "0y", "s", "1e3s", "inf", "6M", "2H", "١s", "9" * 400 + "d"]
)
def test_other_texts_are_no_duration(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(("text", "ms"), [("90", 90_000), ("1.5", 1_500), ("2h", 7_200_000), ("0", 0), ("1y", None)])
def test_a_number_without_a_unit_has_the_default_one(text: str, ms: int | None) -> None:
    assert parse_duration(text, default_unit="s") == ms


@pytest.mark.parametrize("text", ["1e30d", "99999999999d"])
def test_durations_beyond_the_range_of_an_instant_are_refused(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize("text", ["10ms", "3min", "6M", "30"])
def test_ages_have_units_that_cannot_be_misread(text: str) -> None:
    assert parse_duration(text, AGE_UNITS_MS) is None
    assert parse_duration("30d", AGE_UNITS_MS) == 2_592_000_000
