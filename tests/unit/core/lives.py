"""What must hold of a job's whole life: visits and runs, keys of side effects, what must not be repeated, and what is
undone in which order."""

from msgspec.structs import replace

from lucius.core.decision import Decision
from lucius.core.model import TERMINAL_STEP, Event, Step, StepStatus
from lucius.core.protocol import Protocol, spec_id

DONE = frozenset({"STEP_SUCCEEDED", "RESULT_ADOPTED", "STEP_SKIPPED", "STEP_FAILED"})


class Life:
    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.keys_of: dict[str, list[str]] = {}
        self.ever_done: set[str] = set()
        self.out: dict[tuple[str, int, int], int] = {}
        self.done_at: dict[str, int] = {}
        self.undone: set[str] = set()
        self.undoing: list[str] = []

    def keep(self, decision: Decision, steps: dict[str, Step]) -> None:
        for step in decision.steps:
            before = steps.get(step.step_id)
            if before is None or _is_new(before, step):
                self._check_key_of_a_start(step, before)
            else:
                assert step.idempotency_key == before.idempotency_key, "an attempt has another key than its step"
            if before is not None:
                _check_change(before, step, decision)
            self._count_hand_overs(step, before, decision.protocol)
        for event in decision.events:
            self._follow_undoing(event)

    def _check_key_of_a_start(self, step: Step, before: Step | None) -> None:
        """Rule 14: by step, map item and visit; by run only for a step that had succeeded."""
        key, known = step.idempotency_key, self.keys_of.setdefault(step.step_id, [])
        assert self.keys.setdefault(key, step.step_id) == step.step_id, "two steps share a key"
        if before is None:
            assert not known
        elif before.run_no == step.run_no:
            same = before.visit == step.visit
            assert (key == before.idempotency_key) if same else (key not in known)
        elif before.status is StepStatus.SUCCEEDED or before.undone:
            assert key not in known, "a step that had succeeded is done again with the same key"
        else:
            assert key == before.idempotency_key, "a step that was not done has another key in the next run"
        known.append(key)

    def _count_hand_overs(self, step: Step, before: Step | None, protocol: Protocol) -> None:
        place = protocol.plan.places[spec_id(step.step_id)]
        if place.spec.retry_safety != "NOT_SAFE_TO_RETRY" or place.handler_of is not None:
            return
        out = step.attempt.handed_over_at is not None
        was_out = (
            before is not None
            and before.attempt.attempt_no == step.attempt.attempt_no
            and before.attempt.handed_over_at is not None
        )
        if out and not was_out:
            times = self.out[step.step_id, step.run_no, step.visit] = (
                self.out.get((step.step_id, step.run_no, step.visit), 0) + 1
            )
            assert times == 1, "a step that must not be repeated went out twice"

    def _follow_undoing(self, event: Event) -> None:
        if event.type in DONE and event.step_id is not None:
            self.done_at[event.step_id] = event.seq
            if event.type != "STEP_FAILED":
                self.undone.discard(event.step_id)
        if event.type == "COMPENSATION_STARTED":
            self.undoing = []
            times = [self.done_at[step_id] for step_id in event.data["steps"]]
            assert times == sorted(times, reverse=True), "not undone in reverse order of completion"
        if event.type == "STEP_COMPENSATED":
            undone = event.data["of"]
            assert undone not in self.undone, f"{undone} was undone twice"
            assert all(self.done_at[undone] < self.done_at[later] for later in self.undoing)
            self.undone.add(undone)
            self.undoing.append(undone)


def _is_new(before: Step, step: Step) -> bool:
    """Another visit, another run that does it again, or another go at a handler; not an adopted or a kept result."""
    if step.attempt.attempt_no == before.attempt.attempt_no:
        return False
    if before.status not in TERMINAL_STEP:  # it may have ended and begun again in one decision
        return (step.run_no, step.visit) != (before.run_no, before.visit)
    return step.attempt.adopted_from is None and step.status is not StepStatus.SKIPPED


def _check_change(before: Step, step: Step, decision: Decision) -> None:
    assert step.run_no in (before.run_no, decision.job.run_no)
    if before.status not in TERMINAL_STEP:
        ended = any(e.attempt.lease_id == before.attempt.lease_id for e in decision.attempts)
        assert ended or (step.run_no, step.visit) == (before.run_no, before.visit)
        return
    if step.attempt.attempt_no == before.attempt.attempt_no:  # kept from an earlier run, or undone
        assert step.run_no > before.run_no or step.undone > before.undone
        same = replace(step, run_no=before.run_no, updated_at=before.updated_at, undone=before.undone)
        same = replace(same, visit=before.visit, closes=before.closes)
        assert same == before, f"{step.step_id} left {before.status}"
        return
    again = (step.run_no, step.visit) > (before.run_no, before.visit)
    handler = decision.protocol.plan.places[spec_id(step.step_id)].handler_of is not None
    by_a_person = any(event.type == "RUN_STARTED" for event in decision.events)
    assert again or handler or by_a_person, f"{step.step_id} left {before.status}"
