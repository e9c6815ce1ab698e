"""The story that the tests of compensation share."""

from typing import Any

from lucius.core.protocol import StepSpec
from tests.unit.core.builders import Story
from tests.unit.core.shapes import protocol, risky, task, undone_by


def booked(*more: StepSpec, **policies: Any) -> Story:
    """Book a flight and a hotel, both of which can be undone; then pay, which must not be repeated."""
    steps = (undone_by("flight"), undone_by("hotel"), *(more or (risky("pay"),)), task("mail"))
    return Story(protocol(*steps, **policies)).dispatched().do("flight", "hotel")
