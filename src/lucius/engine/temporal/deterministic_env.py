"""Ids and jitter of decisions that are taken more than once: by a replay, or by an activity and then the workflow."""

import hashlib
import random

from lucius.core.model.decision import Defaults, Env
from lucius.core.model.records import Job
from lucius.core.model.tools import Tools


def derive_id(run_id: str, job: Job, number: int) -> str:
    """Derive the id of a decision's n-th new record from the job's version.

    Only one decision per version is ever committed, so no two attempts share an id. A random generator restarts with
    each replay and would produce the same id twice.
    """
    seed = f"{run_id} {job.version} {job.event_hash} {number}"
    return hashlib.sha256(seed.encode()).hexdigest()[:24]


def make_env(run_id: str, job: Job, defaults: Defaults, tools: Tools) -> Env:
    """Make the environment of one inline decision; activity and workflow get identical ids and jitter from it."""
    chance: random.Random | None = None
    made = 0

    def new_id() -> str:
        nonlocal made
        made += 1
        return derive_id(run_id, job, made)

    def jitter() -> float:
        nonlocal chance
        chance = chance or random.Random(f"{run_id} {job.version} {job.event_hash}")  # rarely needed, and slow to seed
        return chance.random()

    return Env(new_id=new_id, jitter=jitter, defaults=defaults, tools=tools)
