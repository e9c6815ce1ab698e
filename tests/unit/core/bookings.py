"""The story that the compensation tests share."""

from typing import Any

from lucius.core.protocol.definition import StepSpec
from tests.unit.core.builders import Story
from tests.unit.core.shapes import protocol, risky, task, undone_by


def booked(*more: StepSpec, **policies: Any) -> Story:
    """Return a story that has booked a flight and a hotel, both undoable, and then pays, which is unsafe to retry."""
    steps = (undone_by("flight"), undone_by("hotel"), *(more or (risky("pay"),)), task("mail"))
    return Story(protocol(*steps, **policies)).dispatched().do("flight", "hotel")
