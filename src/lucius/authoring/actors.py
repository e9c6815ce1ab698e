"""Participants of a simulation, which follow its script: services, called hosts, and people."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from lucius.authoring.script import (
    Ballot,
    Script,
    ScriptedAct,
    ScriptedAnswer,
    ScriptedFailure,
    ScriptedSignal,
    ScriptedSilence,
    for_step,
    voters,
)
from lucius.authoring.sim_state import SimState
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.inputs import (
    Ack,
    Cancel,
    CastVote,
    Failed,
    GiveSignal,
    HandedOver,
    Heartbeat,
    Pause,
    Resume,
    Succeeded,
)
from lucius.core.model.records import NEVER, ErrorInfo, Instant, Millis, OutboxRow, Step
from lucius.core.model.statuses import WITH_SERVICE, FailureClass
from lucius.core.protocol.definition import HTTP_SERVICE, Approval
from lucius.core.steps.external_call import DEFAULT_TIMEOUT_MS

DEFAULT_DURATION_MS: Millis = 1_000
DEFAULT_REACTION_MS: Millis = 60_000
OPERATOR = "operator"

ScriptedOutcome = Succeeded | Failed


class CallResult(Struct, frozen=True):
    """Outcome of an attempt at a call: whether its guard was called first, and whether the call was made then."""

    outcome: ScriptedOutcome
    guard_asked: bool = False
    made: bool = True


class CallSimulator(Protocol):
    """Simulates the engine's HTTP calls: whether the guard is called, and what an answer means."""

    def simulate_call(self, view: JobSnapshot, step: Step, answer: ScriptedAnswer, guard: ScriptedAnswer) -> CallResult:
        """Return the outcome of a call; `guard` is what the guard would answer if it were called."""


class Services:
    def __init__(self, state: SimState, script: Script, calls: CallSimulator) -> None:
        self._state, self._script, self._calls = state, script, calls
        self._used: dict[tuple[str, str], int] = {}

    def take(self) -> None:
        """Take all rows that are due for hand-over."""
        for row in list(self._state.rows.values()):
            if row.next_attempt_at is None or row.next_attempt_at <= self._state.now:
                self._take(row)

    def _take(self, row: OutboxRow) -> None:
        state, is_call = self._state, row.service == HTTP_SERVICE
        state.decide(HandedOver(row.step_id, row.attempt_no, row.lease_id, picked_up=is_call))
        step = state.view.steps[row.step_id]
        failure = self._next_failure(step)
        if isinstance(failure, ScriptedSilence) and failure.until == "ack":
            return
        if not is_call:
            state.decide(Ack(step_id=row.step_id, attempt_no=row.attempt_no, lease_id=row.lease_id))
        ends_at = state.now + (for_step(self._script.durations, step.step_id) or DEFAULT_DURATION_MS)
        match failure:
            case ScriptedSilence():
                self._simulate_silence(step, failure)
            case ScriptedFailure():
                self._report(step, ends_at, lambda: _failed(step, failure.failure_class))
            case None:
                self._report(step, ends_at, lambda: self._answered(step))

    def _next_failure(self, step: Step) -> ScriptedFailure | ScriptedSilence | None:
        scripted = for_step(self._script.failures, step.step_id) or ()
        used = self._use("failure", step)
        return scripted[used] if used < len(scripted) else None

    def _use(self, what: str, step: Step) -> int:
        """Count one more use and return how many there were before."""
        used = self._used.get((what, step.step_id), 0)
        self._used[what, step.step_id] = used + 1
        return used

    def _simulate_silence(self, step: Step, failure: ScriptedSilence) -> None:
        """Simulate a step that runs until its time limit.

        A call without a limit of its own ends after DEFAULT_TIMEOUT_MS; a task keeps sending heartbeats.
        """
        if failure.until != "step":
            return
        if step.service != HTTP_SERVICE:
            self._schedule_heartbeat(step, NEVER)
        elif not self._state.spec(step.step_id).timeout_ms:
            error = ErrorInfo("TIMEOUT", f"no complete answer within {DEFAULT_TIMEOUT_MS} ms")
            ends_at = self._state.now + DEFAULT_TIMEOUT_MS
            self._report(step, ends_at, lambda: _failed(step, FailureClass.TRANSIENT, error))

    def _report(self, step: Step, at: Instant, make_outcome: Callable[[], ScriptedOutcome]) -> None:
        if step.service != HTTP_SERVICE:
            self._schedule_heartbeat(step, at)
        self._state.schedule_at(at, self._report_now, step, make_outcome)

    def _report_now(self, step: Step, make_outcome: Callable[[], ScriptedOutcome]) -> None:
        """Report an outcome unless the attempt was fenced; late results are not simulated."""
        if self._is_current(step):
            self._state.decide(make_outcome())

    def _is_current(self, step: Step) -> bool:
        now = self._state.view.steps[step.step_id]
        return now.attempt.lease_id == step.attempt.lease_id and now.status in WITH_SERVICE

    def _schedule_heartbeat(self, step: Step, until: Instant) -> None:
        """Schedule the next heartbeat if the lease ends before `until`."""
        state = self._state
        lease = state.view.steps[step.step_id].attempt.lease_expires_at
        if lease is not None and lease <= until:
            state.schedule_after(max(1, (lease - state.now) // 2), self._send_heartbeat, step, until)

    def _send_heartbeat(self, step: Step, until: Instant) -> None:
        if self._is_current(step):
            attempt = step.attempt
            beat = Heartbeat(step_id=step.step_id, attempt_no=attempt.attempt_no, lease_id=attempt.lease_id)
            self._state.decide(beat)
            self._schedule_heartbeat(step, until)

    def _answered(self, step: Step) -> ScriptedOutcome:
        state, answer = self._state, self._answer(self._script.answers, "answer", step)
        if answer is None:
            state.timeline.note_missing_result(step.step_id)
        if step.service != HTTP_SERVICE:
            return _succeeded(step, answer.body if answer is not None else {})
        guard = self._answer(self._script.guards, "guard", step) or ScriptedAnswer(None, 404)
        call = self._calls.simulate_call(state.view, step, answer or ScriptedAnswer({}), guard)
        if call.guard_asked:
            state.timeline.add_guard_call(state.now, step, guard.status, call.made)
        outcome = call.outcome
        if answer is None and isinstance(outcome, Failed) and outcome.error.code == "EXPRESSION_FAILED":
            return _succeeded(step, None)
        return outcome

    def _answer(
        self, scripted: Mapping[str, tuple[ScriptedAnswer, ...]], what: str, step: Step
    ) -> ScriptedAnswer | None:
        answers = for_step(scripted, step.step_id)
        return answers[min(self._use(what, step), len(answers) - 1)] if answers else None


def _succeeded(step: Step, result: Any) -> Succeeded:
    attempt = step.attempt
    return Succeeded(step_id=step.step_id, attempt_no=attempt.attempt_no, lease_id=attempt.lease_id, result=result)


def _failed(step: Step, cause: FailureClass, error: ErrorInfo | None = None) -> Failed:
    return Failed(
        step_id=step.step_id,
        attempt_no=step.attempt.attempt_no,
        lease_id=step.attempt.lease_id,
        failure_class=cause,
        error=error or ErrorInfo("SIMULATED", "as the script demands"),
    )


class People:
    def __init__(self, state: SimState, script: Script) -> None:
        self._state, self._script = state, script
        self._signals = [signal for signal in script.signals if signal.at is None]
        self._ballots: dict[str, list[Ballot]] = {}
        state.watchers.append(self._react)
        for act in script.acts:
            state.schedule_after(act.at, self._act, act)
        for signal in script.signals:
            if signal.at is not None:
                state.schedule_after(signal.at, self._send_signal, signal)
        for step_id, ballots in script.ballots.items():
            for ballot in ballots:
                if ballot.at is not None:
                    state.schedule_after(ballot.at, self._vote, step_id, ballot)

    def _act(self, act: ScriptedAct) -> None:
        why = "as the script demands"
        match act.what:
            case "pause":
                self._state.decide(Pause(OPERATOR, why))
            case "resume":
                self._state.decide(Resume(OPERATOR, why))
            case "cancel":
                self._state.decide(Cancel(OPERATOR, why))

    def _react(self, decision: Decision) -> None:
        for event in decision.events:
            if event.type == "APPROVAL_REQUESTED" and event.step_id is not None:
                self._schedule_votes(event.step_id)
            elif event.type == "STEP_WAITING" and event.data.get("signal"):
                self._schedule_signal(event.data["signal"])

    def _schedule_signal(self, name: str) -> None:
        signal = next((signal for signal in self._signals if signal.name == name), None)
        if signal is not None:
            self._signals.remove(signal)
            self._state.schedule_after(DEFAULT_REACTION_MS, self._send_signal, signal)

    def _send_signal(self, signal: ScriptedSignal) -> None:
        self._state.decide(GiveSignal(signal.name, OPERATOR, signal.payload))

    def _schedule_votes(self, step_id: str) -> None:
        """Schedule the next ballots of a visit: one rejection, or as many approvals as are needed."""
        if step_id not in self._ballots:
            scripted = for_step(self._script.ballots, step_id) or ()
            self._ballots[step_id] = [ballot for ballot in scripted if ballot.at is None]
        ballots, missing, wait = self._ballots[step_id], self._approval(step_id).quorum, 0
        while ballots and missing > 0:
            ballot = ballots.pop(0)
            voters_of_ballot = list(voters(ballot, self._approval(step_id)))
            for name, groups in voters_of_ballot:
                wait += DEFAULT_REACTION_MS
                self._state.schedule_after(wait, self._cast, step_id, ballot.approves, name, groups)
            missing -= len(voters_of_ballot) if ballot.approves else missing

    def _approval(self, step_id: str) -> Approval:
        approval = self._state.spec(step_id).human_approval
        assert approval is not None, "only approvals are voted on"
        return approval

    def _vote(self, step_id: str, ballot: Ballot) -> None:
        for name, groups in voters(ballot, self._approval(step_id)):
            self._cast(step_id, ballot.approves, name, groups)

    def _cast(self, step_id: str, approves: bool, name: str, groups: tuple[str, ...]) -> None:
        self._state.decide(CastVote(step_id=step_id, approves=approves, by=name, groups=groups))
