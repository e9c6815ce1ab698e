"""Who takes part in a rehearsal: services, those who are called, and people. All of them do as the script says."""

from collections.abc import Callable, Mapping
from typing import Any
from typing import Protocol as Interface

from msgspec import Struct

from lucius.authoring.script import Answers, Asked, Ballot, Fails, Script, Silent, Told, for_step, voters
from lucius.authoring.stage import Stage
from lucius.core.calls import TIMEOUT_MS
from lucius.core.decision import Decision, JobView
from lucius.core.inputs import (
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
from lucius.core.model import NEVER, WITH_SERVICE, ErrorInfo, FailureClass, Instant, Millis, OutboxRow, Step
from lucius.core.protocol import HTTP_SERVICE, Approval

TAKES: Millis = 1_000
HESITATES: Millis = 60_000
OPERATOR = "operator"

Outcome = Succeeded | Failed


class Heard(Struct, frozen=True):
    """What an attempt at a call came to; whether its guard was asked before, and whether it was made at all then."""

    outcome: Outcome
    guard_asked: bool = False
    made: bool = True


class Calls(Interface):
    """How the engine makes calls: when it asks a guard, what is a result and what a failure."""

    def hear(self, view: JobView, step: Step, answer: Answers, guard: Answers) -> Heard:
        """`guard` is what the guard would answer, should it be asked."""


class Services:
    def __init__(self, stage: Stage, script: Script, calls: Calls) -> None:
        self._stage, self._script, self._calls = stage, script, calls
        self._used: dict[tuple[str, str], int] = {}

    def take(self) -> None:
        """Everything that waits to be handed over, and may be."""
        for row in list(self._stage.rows.values()):
            if row.next_attempt_at is None or row.next_attempt_at <= self._stage.now:
                self._take(row)

    def _take(self, row: OutboxRow) -> None:
        stage, is_call = self._stage, row.service == HTTP_SERVICE
        stage.decide(HandedOver(row.step_id, row.attempt_no, row.lease_id, picked_up=is_call))
        step = stage.view.steps[row.step_id]
        trouble = self._trouble(step)
        if isinstance(trouble, Silent) and trouble.until == "ack":
            return
        if not is_call:
            stage.decide(Ack(step_id=row.step_id, attempt_no=row.attempt_no, lease_id=row.lease_id))
        ends_at = stage.now + (for_step(self._script.durations, step.step_id) or TAKES)
        match trouble:
            case Silent():
                self._fall_silent(step, trouble)
            case Fails():
                self._report(step, ends_at, lambda: _failed(step, trouble.failure_class))
            case None:
                self._report(step, ends_at, lambda: self._answered(step))

    def _trouble(self, step: Step) -> Fails | Silent | None:
        told = for_step(self._script.troubles, step.step_id) or ()
        used = self._use("trouble", step)
        return told[used] if used < len(told) else None

    def _use(self, what: str, step: Step) -> int:
        """How often this was asked for before."""
        used = self._used.get((what, step.step_id), 0)
        self._used[what, step.step_id] = used + 1
        return used

    def _fall_silent(self, step: Step, trouble: Silent) -> None:
        """The engine gives up a call that has no limit of its own; a task that only takes long is still heard of."""
        if trouble.until != "step":
            return
        if step.service != HTTP_SERVICE:
            self._beat(step, NEVER)
        elif not self._stage.spec(step.step_id).timeout_ms:
            error = ErrorInfo("TIMEOUT", f"no complete answer within {TIMEOUT_MS} ms")
            ends_at = self._stage.now + TIMEOUT_MS
            self._report(step, ends_at, lambda: _failed(step, FailureClass.TRANSIENT, error))

    def _report(self, step: Step, at: Instant, say: Callable[[], Outcome]) -> None:
        if step.service != HTTP_SERVICE:
            self._beat(step, at)
        self._stage.at(at, self._say, step, say)

    def _say(self, step: Step, say: Callable[[], Outcome]) -> None:
        """One that was fenced says nothing any more: a rehearsal is not about late results."""
        if self._is_current(step):
            self._stage.decide(say())

    def _is_current(self, step: Step) -> bool:
        now = self._stage.view.steps[step.step_id]
        return now.attempt.lease_id == step.attempt.lease_id and now.status in WITH_SERVICE

    def _beat(self, step: Step, until: Instant) -> None:
        """Heartbeats, as often as the lease needs them."""
        stage = self._stage
        lease = stage.view.steps[step.step_id].attempt.lease_expires_at
        if lease is not None and lease <= until:
            stage.later(max(1, (lease - stage.now) // 2), self._beat_once, step, until)

    def _beat_once(self, step: Step, until: Instant) -> None:
        if self._is_current(step):
            attempt = step.attempt
            beat = Heartbeat(step_id=step.step_id, attempt_no=attempt.attempt_no, lease_id=attempt.lease_id)
            self._stage.decide(beat)
            self._beat(step, until)

    def _answered(self, step: Step) -> Outcome:
        stage, answer = self._stage, self._answer(self._script.answers, "answer", step)
        if answer is None:
            stage.teller.unsaid(step.step_id)
        if step.service != HTTP_SERVICE:
            return _succeeded(step, answer.body if answer is not None else {})
        guard = self._answer(self._script.guards, "guard", step) or Answers(None, 404)
        heard = self._calls.hear(stage.view, step, answer or Answers({}), guard)
        if heard.guard_asked:
            stage.teller.guard(stage.now, step, guard.status, heard.made)
        outcome = heard.outcome
        if answer is None and isinstance(outcome, Failed) and outcome.error.code == "EXPRESSION_FAILED":
            return _succeeded(step, None)
        return outcome

    def _answer(self, told: Mapping[str, tuple[Answers, ...]], what: str, step: Step) -> Answers | None:
        answers = for_step(told, step.step_id)
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
        error=error or ErrorInfo("SIMULATED", "the script says so"),
    )


class People:
    def __init__(self, stage: Stage, script: Script) -> None:
        self._stage, self._script = stage, script
        self._signals = [signal for signal in script.signals if signal.at is None]
        self._ballots: dict[str, list[Ballot]] = {}
        stage.watchers.append(self._react)
        for asked in script.asked:
            stage.later(asked.at, self._ask, asked)
        for signal in script.signals:
            if signal.at is not None:
                stage.later(signal.at, self._give, signal)
        for step_id, ballots in script.ballots.items():
            for ballot in ballots:
                if ballot.at is not None:
                    stage.later(ballot.at, self._vote, step_id, ballot)

    def _ask(self, asked: Asked) -> None:
        why = "the script says so"
        match asked.what:
            case "pause":
                self._stage.decide(Pause(OPERATOR, why))
            case "resume":
                self._stage.decide(Resume(OPERATOR, why))
            case "cancel":
                self._stage.decide(Cancel(OPERATOR, why))

    def _react(self, decision: Decision) -> None:
        for event in decision.events:
            if event.type == "APPROVAL_REQUESTED" and event.step_id is not None:
                self._gather_votes(event.step_id)
            elif event.type == "STEP_WAITING" and event.data.get("signal"):
                self._send(event.data["signal"])

    def _send(self, name: str) -> None:
        signal = next((signal for signal in self._signals if signal.name == name), None)
        if signal is not None:
            self._signals.remove(signal)
            self._stage.later(HESITATES, self._give, signal)

    def _give(self, signal: Told) -> None:
        self._stage.decide(GiveSignal(signal.name, OPERATOR, signal.payload))

    def _gather_votes(self, step_id: str) -> None:
        """For each visit the next ballots: one no, or as many a yes as are needed."""
        if step_id not in self._ballots:
            told = for_step(self._script.ballots, step_id) or ()
            self._ballots[step_id] = [ballot for ballot in told if ballot.at is None]
        ballots, missing, wait = self._ballots[step_id], self._approval(step_id).quorum, 0
        while ballots and missing > 0:
            ballot = ballots.pop(0)
            voices = list(voters(ballot, self._approval(step_id)))
            for name, groups in voices:
                wait += HESITATES
                self._stage.later(wait, self._cast, step_id, ballot.approves, name, groups)
            missing -= len(voices) if ballot.approves else missing

    def _approval(self, step_id: str) -> Approval:
        approval = self._stage.spec(step_id).human_approval
        assert approval is not None, "only approvals are voted on"
        return approval

    def _vote(self, step_id: str, ballot: Ballot) -> None:
        for name, groups in voters(ballot, self._approval(step_id)):
            self._cast(step_id, ballot.approves, name, groups)

    def _cast(self, step_id: str, approves: bool, name: str, groups: tuple[str, ...]) -> None:
        self._stage.decide(CastVote(step_id=step_id, approves=approves, by=name, groups=groups))
