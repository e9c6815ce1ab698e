"""Timeline of a simulation: an entry for each notable event, and for each wait with its reason."""

import re
from typing import Any

import msgspec
from msgspec import Struct

from lucius.authoring.formatting import duration, shortened
from lucius.core.model.decision import Decision, JobSnapshot, Refused
from lucius.core.model.inputs import Input
from lucius.core.model.records import Event, Instant, Millis, Step
from lucius.core.protocol.definition import HTTP_SERVICE, Place, ProtocolDefinition, items_of, spec_id

MAX_VALUE_CHARS = 100
_BY_EXPRESSION = frozenset({"EXPRESSION_FAILED", "TEMPLATE_FAILED", "MAP_ITEMS_INVALID"})
_LATE = frozenset({"ACK_TIMEOUT", "LEASE_EXPIRED", "STEP_TIMEOUT"})


class TimelineEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line. `at_ms` is since the start. `event` is the core's name, or WAITS, GUARD or REFUSED."""

    at_ms: Millis
    event: str
    text: str
    step_id: str | None = None
    attempt_no: int | None = None


class PathStep(Struct, frozen=True, omit_defaults=True):
    """A step of the top-level list that was reached; `because` names the cause, unless it was success."""

    step_id: str
    because: str = ""


class TimelineWriter:
    def __init__(self, protocol: ProtocolDefinition, start: Instant) -> None:
        self._plan, self._start = protocol.plan, start
        self._view: JobSnapshot | None = None
        self._retrying: set[str] = set()
        self._open: set[str] = set()
        self._without_result: set[str] = set()
        self._causes: dict[tuple[str | None, str | None, tuple[int, ...]], str] = {}
        self._waits: dict[str | None, str] = {}
        self.entries: list[TimelineEntry] = []
        self.path: list[PathStep] = []
        self.notes: list[str] = []

    def add_decision(self, decision: Decision, view: JobSnapshot) -> None:
        self._view = view
        for event in decision.events:
            text = self._text(event)
            if text is not None:
                self._waits.pop(event.step_id, None)
                self._add(event.at, event.type, text, event.step_id, event.attempt_no)

    def add_wait(self, now: Instant, step_id: str | None, why: str) -> None:
        """Add the reason why a step waits, once until its next event, without the count of other steps."""
        said = why.partition(" (and ")[0]
        if self._waits.get(step_id) != said:
            self._waits[step_id] = said
            self._add(now, "WAITS", said, step_id, None)

    def add_refusal(self, now: Instant, refused_input: Input, reply: Refused) -> None:
        step_id = getattr(refused_input, "step_id", None)
        self._add(
            now, "REFUSED", f"{type(refused_input).__name__} is refused: {reply.message} [{reply.code}]", step_id, None
        )

    def add_guard_call(self, now: Instant, step: Step, status: int, made: bool) -> None:
        then = "so that the call is made" if made else "so that the call is not made again"
        text = f"the guard is called first and answers {status}, {then}"
        self._add(now, "GUARD", text, step.step_id, step.attempt.attempt_no)

    def note_missing_result(self, step_id: str) -> None:
        """Note that the script has no result for this step."""
        self._without_result.add(spec_id(step_id))

    def finish(self, view: JobSnapshot) -> None:
        """Add notes about missing results that expressions needed."""
        failed = [step.last_error.message for step in view.steps.values()
                  if step.last_error is not None and step.last_error.code in _BY_EXPRESSION]  # fmt: skip
        for name in sorted(self._without_result):
            if any(re.search(rf"\bsteps\.{re.escape(name)}\b", message) for message in failed):
                self.notes.append(f"an expression reads the result of {name}, which --result does not give")

    def _add(self, at: Instant, event: str, text: str, step_id: str | None, attempt_no: int | None) -> None:
        entry = TimelineEntry(at_ms=at - self._start, event=event, text=text, step_id=step_id, attempt_no=attempt_no)
        self.entries.append(entry)

    def _text(self, event: Event) -> str | None:
        if event.step_id is None:
            return _job_text(event)
        place = self._plan.places[spec_id(event.step_id)]
        return self._start_text(event, place) or self._progress_text(event, place)

    # The start of a visit

    def _start_text(self, event: Event, place: Place) -> str | None:
        """Describe the start of a visit with its cause; None if the event is not the first of a visit."""
        step = self._step(event)
        match event.type:
            case "STEP_DISPATCHED" if event.step_id in self._retrying:
                self._retrying.discard(event.step_id)
                guard = "calls the guard and, if need be, " if step.guard_request is not None else ""
                return f"attempt {event.attempt_no} {guard}{self._dispatch_text(step)}"
            case "STEP_DISPATCHED":
                text = f"attempt {event.attempt_no} {self._dispatch_text(step)}"
            case "STEP_WAITING":
                text = _wait_text(event.data, event.at)
            case "APPROVAL_REQUESTED":
                text = f"{' or '.join(event.data['approvers'])} asked to approve{_limit_text(event.data, event.at)}"
            case "STEP_STARTED":
                text = f"starts, with {event.data['total']} {'branches' if place.spec.parallel else 'items'}"
            case "STEP_SUCCEEDED" if place.spec.decision is not None:
                text = f"goes to {event.data['then']}{self._choice_text(step, place)}"
            case "STEP_FAILED" if step.step_id not in self._open:
                text = self._failure_text(event, step)
            case _:
                return None
        because = self._causes.pop(self._scope(event.step_id, place), "")
        if place.handler_of is not None:
            because = f"undoes {place.handler_of}"
        elif place.container is None:
            self.path.append(PathStep(step.step_id, because))
        self._open.add(step.step_id)
        if event.type in ("STEP_SUCCEEDED", "STEP_FAILED"):
            self._record_end(event, place)
        return f"{text} ({because})" if because else text

    def _step(self, event: Event) -> Step:
        assert self._view is not None, "a decision was made"
        return self._view.steps[event.step_id or ""]

    def _scope(self, step_id: str | None, place: Place) -> tuple[str | None, str | None, tuple[int, ...]]:
        return place.container, place.branch, items_of(step_id or "")

    def _dispatch_text(self, step: Step) -> str:
        if step.service != HTTP_SERVICE:
            return f"goes to service {step.service}"
        assert step.request is not None, "a call has a request"
        return f"calls {step.request.method} {shortened(step.request.url, MAX_VALUE_CHARS)}"

    def _choice_text(self, step: Step, place: Place) -> str:
        number = step.result.get("choice") if isinstance(step.result, dict) else None
        if place.spec.decision is None or number is None:
            return ", as no choice holds"
        return f", as {shortened(place.spec.decision.choices[number].when, MAX_VALUE_CHARS)}"

    # The end of a visit

    def _progress_text(self, event: Event, place: Place) -> str | None:
        step = self._step(event)
        match event.type:
            case "STEP_SUCCEEDED":
                self._record_end(event, place)
                return f"succeeded{_result_text(step.result)}"
            case "STEP_RETRY_SCHEDULED":
                self._retrying.add(step.step_id)
                return f"{_outcome_text(event)}; tried again in {duration(event.data['retry_at'] - event.at)}"
            case "STEP_FAILED":
                self._record_end(event, place)
                return self._failure_text(event, step)
            case "STEP_CANCELLED":
                self._open.discard(step.step_id)
                self._retrying.discard(step.step_id)
                return f"stopped ({event.data['cause']})"
            case "STEP_APPROVED" | "STEP_REJECTED":
                return f"{event.type.removeprefix('STEP_').lower()} by {event.data['by']}"
            case "CALLBACK_RESULT" if event.data["disposition"] != "APPLIED":
                return f"a result of attempt {event.attempt_no} is {event.data['disposition']}"
            case _:
                return None

    def _record_end(self, event: Event, place: Place) -> None:
        """Record the end of a visit as the cause of the next step's start."""
        self._open.discard(event.step_id or "")
        if event.type == "STEP_FAILED" and place.handler_of is None:
            late = event.data.get("cause") in _LATE
            by = "on_timeout" if late and place.spec.on_timeout is not None else "on_failure"
            self._causes[self._scope(event.step_id, place)] = f"{by} of {event.step_id}"

    def _failure_text(self, event: Event, step: Step) -> str:
        message = step.last_error.message if step.last_error else ""
        return f"failed finally: {_outcome_text(event)}{': ' + message if message else ''}"


def _outcome_text(event: Event) -> str:
    cause, class_, code = (event.data.get(name) for name in ("cause", "failure_class", "error_code"))
    attempt = f"attempt {event.attempt_no}"
    if cause in (None, "FAILED"):
        named = f"{class_} ({code})" if class_ and code and code != class_ else code or class_
        return f"{attempt} failed with {named}" if named else f"{attempt} failed"
    return f"{attempt} ended with {code if code and code != 'SIMULATED' else cause}"


def _wait_text(data: dict[str, Any], at: Instant) -> str:
    if data.get("signal"):
        return f"waits for signal {data['signal']}{_limit_text(data, at)}"
    return f"waits {duration(max(0, data['until'] - at))}"


def _limit_text(data: dict[str, Any], at: Instant) -> str:
    until = data.get("until")
    return f", {duration(until - at)} at most" if until is not None else ""


def _result_text(result: Any) -> str:
    if result is None or result == {}:
        return ""
    return f" with {shortened(msgspec.json.encode(result).decode(), MAX_VALUE_CHARS)}"


def _job_text(event: Event) -> str | None:
    data = event.data
    match event.type:
        case "JOB_ACCEPTED":
            return "the job is accepted"
        case "SIGNAL_RECEIVED":
            return f"signal {data['name']} received"
        case "JOB_PAUSED" | "JOB_RESUMED":
            return f"{event.type.removeprefix('JOB_').lower()} by {data['by']}"
        case "CANCEL_REQUESTED":
            return f"{data['by']} asks to cancel"
        case "JOB_HELD":
            return "held until an operator decides about compensation"
        case "COMPENSATION_STARTED":
            return f"undoing {', '.join(data['steps'])}" if data["steps"] else "nothing to undo"
        case "STEP_COMPENSATED":
            return f"{data['of']} is undone by {data['handler']}"
        case "COMPENSATION_HALTED":
            return f"undoing stops at {data['handler']}; left: {', '.join(data['steps'])}"
        case "COMPENSATION_COMPLETED":
            return "all steps are undone" if data["steps"] else None
        case "REVIEW_OPENED":
            return f"a review item is opened: {data['kind']}"
        case "JOB_SUCCEEDED" | "JOB_CANCELLED":
            return f"the job has ended {event.type.removeprefix('JOB_')}"
        case "JOB_FAILED_FINAL":
            return f"the job has ended FAILED_FINAL: {data.get('error_code', '')}"
        case _:
            return None
