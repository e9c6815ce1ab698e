"""Splits a job that is too large for one payload: active steps first, the others when needed."""

from collections.abc import Collection, Iterable

import msgspec
from msgspec import Struct

from lucius.core.model.decision import JobSnapshot
from lucius.core.model.records import Step
from lucius.engine.temporal.messages import LoadedJob

MAX_STEPS_BYTES = 1_000_000
"""Steps in one payload. Temporal limits a payload to 2 MB and a whole message to 4 MB."""


class LoadStepsRequest(Struct, frozen=True):
    job_id: str
    step_ids: list[str]


def first_part(view: JobSnapshot) -> LoadedJob:
    """Return the active steps, of any size, and as many of the latest changed ones as fit."""
    active = [view.steps[step_id] for step_id in view.job.active]
    others = (step for step in view.steps.values() if step.step_id not in view.job.active)
    steps = [*active, *_as_many(sorted(others, key=lambda step: -step.updated_at), _size(active))]
    asked = None if len(steps) == len(view.steps) else [step.step_id for step in steps]
    return LoadedJob(view.job, view.protocol, steps, asked)


def next_part(view: JobSnapshot, wanted: Collection[str]) -> LoadedJob:
    """Return as many of the wanted steps as fit, at least one. Unstarted steps count as loaded."""
    there = [view.steps[step_id] for step_id in wanted if step_id in view.steps]
    steps = list(_as_many(there, 0)) or there[:1]
    never_started = [step_id for step_id in wanted if step_id not in view.steps]
    return LoadedJob(steps=steps, asked=[*(step.step_id for step in steps), *never_started])


def joined(view: JobSnapshot, part: LoadedJob) -> JobSnapshot:
    """Add loaded steps to the view; steps it already has are newer and win."""
    steps = {**{step.step_id: step for step in part.steps}, **view.steps}
    asked = None if view.asked is None else view.asked | set(part.asked or ())
    return JobSnapshot(view.job, view.protocol, steps, asked)


def _as_many(steps: Iterable[Step], used: int) -> Iterable[Step]:
    for step in steps:
        used += _size((step,))
        if used > MAX_STEPS_BYTES:
            return
        yield step


def _size(steps: Iterable[Step]) -> int:
    return sum(len(msgspec.json.encode(step)) for step in steps)
