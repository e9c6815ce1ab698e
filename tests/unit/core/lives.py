"""Invariants of a job's whole life: visits and runs, idempotency keys, steps that are unsafe to retry, and the order of
compensation.
"""

from msgspec.structs import replace

from lucius.core.model.decision import Decision
from lucius.core.model.records import Attempt, Event, Step
from lucius.core.model.statuses import TERMINAL_STEP, AttemptOutcome
from lucius.core.protocol.definition import CONTAINERS, ProtocolDefinition, spec_id

DONE = frozenset({"STEP_SUCCEEDED", "RESULT_ADOPTED", "STEP_SKIPPED"})


class Life:
    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.keys_of: dict[str, list[str]] = {}
        self.attempts: dict[str, Attempt] = {}
        self.done_anew: set[str] = set()
        self.given: set[str] = set()
        self.skipped: set[tuple[str | None, int | None]] = set()
        self.out: dict[tuple[str, int, int], int] = {}
        self.done_at: dict[str, int] = {}
        self.undone: set[str] = set()
        self.undoing: list[str] = []

    def keep(self, decision: Decision, steps: dict[str, Step]) -> None:
        self._follow_keys(decision)
        for step in decision.steps:
            before = steps.get(step.step_id)
            if before is not None:
                _check_change(before, step, decision)
            self._count_hand_overs(step, before, decision.protocol)
        for event in decision.events:
            self._follow_undoing(event)

    def _follow_keys(self, decision: Decision) -> None:
        """Check idempotency keys: a key is per step, map item and visit, and per run only for steps that had succeeded.

        All attempts of one execution share the key.
        """
        made = {(ended.step_id, ended.attempt.attempt_no): ended.attempt for ended in decision.attempts}
        made |= {(step.step_id, step.attempt.attempt_no): step.attempt for step in decision.steps}
        self.skipped |= {(e.step_id, e.attempt_no) for e in decision.events if e.type == "STEP_SKIPPED"}
        for (step_id, number), attempt in sorted(made.items()):
            given = (step_id, number) in self.skipped or attempt.adopted_from is not None
            if not given and decision.protocol.plan.places[spec_id(step_id)].spec.kind not in CONTAINERS:
                self._check_key(step_id, attempt)
            self.attempts[step_id] = attempt
            (self.given.add if given else self.given.discard)(step_id)
            done = attempt.outcome is AttemptOutcome.SUCCEEDED and (step_id, number) not in self.skipped
            (self.done_anew.add if done else self.done_anew.discard)(step_id)
        self.done_anew |= {step.step_id for step in decision.steps if step.undone}

    def _check_key(self, step_id: str, attempt: Attempt) -> None:
        key, known, before = attempt.idempotency_key, self.keys_of.setdefault(step_id, []), self.attempts.get(step_id)
        assert self.keys.setdefault(key, step_id) == step_id, "two steps share a key"
        if before is not None and before.attempt_no != attempt.attempt_no:
            if before.run_no == attempt.run_no and step_id not in self.given:
                assert (key == before.idempotency_key) if before.visit == attempt.visit else (key not in known)
            elif step_id in self.done_anew:
                assert key not in known, "a step that had succeeded is done again with the same key"
            elif step_id not in self.given:
                begins_anew = before.visit > 1 and key not in known  # a later visit that the run does not continue
                assert key == before.idempotency_key or begins_anew, "a step that was not done has another key"
        known.append(key)

    def _count_hand_overs(self, step: Step, before: Step | None, protocol: ProtocolDefinition) -> None:
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
            self.undone.discard(event.step_id)
        if event.type == "STEP_FAILED" and event.step_id is not None:  # its earlier effect still has to be undone
            self.done_at.pop(event.step_id, None)
            self.undone.discard(event.step_id)
        if event.type == "COMPENSATION_STARTED":
            self.undoing = []
            times = [self.done_at[step_id] for step_id in event.data["steps"] if step_id in self.done_at]
            assert times == sorted(times, reverse=True), "not undone in reverse order of completion"
        if event.type == "STEP_COMPENSATED":
            undone = event.data["of"]
            assert undone not in self.undone, f"{undone} was undone twice"
            later = [self.done_at[step_id] for step_id in self.undoing if step_id in self.done_at]
            assert all(self.done_at.get(undone, 0) < at for at in later)
            self.undone.add(undone)
            self.undoing.append(undone)


def _check_change(before: Step, step: Step, decision: Decision) -> None:
    found_later = step.attempt.outbox_id == "" and step.run_no == decision.job.run_no - 1  # adopted inside a container
    assert step.run_no in (before.run_no, decision.job.run_no) or found_later
    if before.status not in TERMINAL_STEP:
        ended = any(e.attempt.lease_id == before.attempt.lease_id for e in decision.attempts)
        assert ended or (step.run_no, step.visit) == (before.run_no, before.visit)
        return
    if step.attempt.attempt_no == before.attempt.attempt_no:  # kept from an earlier run, or undone
        assert step.run_no > before.run_no or step.undone > before.undone
        same = replace(step, run_no=before.run_no, updated_at=before.updated_at, undone=before.undone)
        same = replace(same, visit=before.visit, closes=before.closes, closes_visit=before.closes_visit)
        assert same == before, f"{step.step_id} left {before.status}"
        return
    again = (step.run_no, step.visit) > (before.run_no, before.visit)
    handler = decision.protocol.plan.places[spec_id(step.step_id)].handler_of is not None
    by_a_person = any(event.type == "RUN_STARTED" for event in decision.events)
    assert again or handler or by_a_person, f"{step.step_id} left {before.status}"
