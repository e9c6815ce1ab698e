"""A job that is too large for one payload comes in parts: what is under way first, the rest when it is needed."""

from collections.abc import Collection, Iterable

import msgspec
from msgspec import Struct

from lucius.core.decision import JobView
from lucius.core.model import Step
from lucius.engine.temporal.wire import Loaded

MOST_BYTES = 1_000_000
"""Of steps, in one payload. Temporal takes 2 MB, and 4 MB with all that it comes with."""


class Wanted(Struct, frozen=True):
    job_id: str
    step_ids: list[str]


def first_part(view: JobView) -> Loaded:
    """What is under way, whatever its size, and what was changed last."""
    active = [view.steps[step_id] for step_id in view.job.active]
    others = (step for step in view.steps.values() if step.step_id not in view.job.active)
    steps = [*active, *_as_many(sorted(others, key=lambda step: -step.updated_at), _size(active))]
    asked = None if len(steps) == len(view.steps) else [step.step_id for step in steps]
    return Loaded(view.job, view.protocol, steps, asked)


def next_part(view: JobView, wanted: Collection[str]) -> Loaded:
    """Of these as many as fit, and at least one. Those that never started are asked for, too: they have no record."""
    there = [view.steps[step_id] for step_id in wanted if step_id in view.steps]
    steps = list(_as_many(there, 0)) or there[:1]
    never_started = [step_id for step_id in wanted if step_id not in view.steps]
    return Loaded(steps=steps, asked=[*(step.step_id for step in steps), *never_started])


def joined(view: JobView, part: Loaded) -> JobView:
    """What we know already is newer."""
    steps = {**{step.step_id: step for step in part.steps}, **view.steps}
    asked = None if view.asked is None else view.asked | set(part.asked or ())
    return JobView(view.job, view.protocol, steps, asked)


def _as_many(steps: Iterable[Step], used: int) -> Iterable[Step]:
    for step in steps:
        used += _size((step,))
        if used > MOST_BYTES:
            return
        yield step


def _size(steps: Iterable[Step]) -> int:
    return sum(len(msgspec.json.encode(step)) for step in steps)
