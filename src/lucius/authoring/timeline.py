"""What happened in a rehearsal, told for its author: a line for each event that matters, and why nothing happens."""

import re
from typing import Any

import msgspec
from msgspec import Struct

from lucius.authoring.words import duration, shortened
from lucius.core.decision import Decision, JobView, Refused
from lucius.core.inputs import Input
from lucius.core.model import Event, Instant, Millis, Step
from lucius.core.protocol import HTTP_SERVICE, Place, Protocol, items_of, spec_id

MAX_VALUE = 100
_BY_EXPRESSION = frozenset({"EXPRESSION_FAILED", "TEMPLATE_FAILED", "MAP_ITEMS_INVALID"})
_LATE = frozenset({"ACK_TIMEOUT", "LEASE_EXPIRED", "STEP_TIMEOUT"})


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`at_ms` is since the start. `event` is the core's name for it; WAITS, GUARD and REFUSED are ours."""

    at_ms: Millis
    event: str
    text: str
    step_id: str | None = None
    attempt_no: int | None = None


class Leg(Struct, frozen=True, omit_defaults=True):
    """A step of the protocol's own list that was reached, and what led to it unless it was plain success."""

    step_id: str
    because: str = ""


class Teller:
    def __init__(self, protocol: Protocol, start: Instant) -> None:
        self._plan, self._start = protocol.plan, start
        self._view: JobView | None = None
        self._retrying: set[str] = set()
        self._open: set[str] = set()
        self._unsaid: set[str] = set()
        self._led_by: dict[tuple[str | None, str | None, tuple[int, ...]], str] = {}
        self._waits: dict[str | None, str] = {}
        self.entries: list[Entry] = []
        self.path: list[Leg] = []
        self.notes: list[str] = []

    def tell(self, decision: Decision, view: JobView) -> None:
        self._view = view
        for event in decision.events:
            text = self._text(event)
            if text is not None:
                self._waits.pop(event.step_id, None)
                self._add(event.at, event.type, text, event.step_id, event.attempt_no)

    def wait(self, now: Instant, step_id: str | None, why: str) -> None:
        """Told once until something happens to that step. How many others run beside it does not make it news."""
        said = why.partition(" (and ")[0]
        if self._waits.get(step_id) != said:
            self._waits[step_id] = said
            self._add(now, "WAITS", said, step_id, None)

    def refused(self, now: Instant, happened: Input, reply: Refused) -> None:
        step_id = getattr(happened, "step_id", None)
        self._add(
            now, "REFUSED", f"{type(happened).__name__} is refused: {reply.message} [{reply.code}]", step_id, None
        )

    def guard(self, now: Instant, step: Step, status: int, made: bool) -> None:
        then = "so that the call is made" if made else "so that the call is not made again"
        text = f"the guard is asked first and answers {status}, {then}"
        self._add(now, "GUARD", text, step.step_id, step.attempt.attempt_no)

    def unsaid(self, step_id: str) -> None:
        """The script does not say what this step comes to."""
        self._unsaid.add(spec_id(step_id))

    def conclude(self, view: JobView) -> None:
        """Say which results were missing, if an expression could not do without them."""
        failed = [step.last_error.message for step in view.steps.values()
                  if step.last_error is not None and step.last_error.code in _BY_EXPRESSION]  # fmt: skip
        for name in sorted(self._unsaid):
            if any(re.search(rf"\bsteps\.{re.escape(name)}\b", message) for message in failed):
                self.notes.append(f"an expression reads the result of {name}, and --result says nothing about it")

    def _add(self, at: Instant, event: str, text: str, step_id: str | None, attempt_no: int | None) -> None:
        entry = Entry(at_ms=at - self._start, event=event, text=text, step_id=step_id, attempt_no=attempt_no)
        self.entries.append(entry)

    def _text(self, event: Event) -> str | None:
        if event.step_id is None:
            return _about_job(event)
        place = self._plan.places[spec_id(event.step_id)]
        return self._begun(event, place) or self._went_on(event, place)

    # A step's turn

    def _begun(self, event: Event, place: Place) -> str | None:
        """If the event is the first of a visit: what the step does, and what led to it."""
        step = self._step(event)
        match event.type:
            case "STEP_DISPATCHED" if event.step_id in self._retrying:
                self._retrying.discard(event.step_id)
                guard = "asks the guard and, if need be, " if step.guard_request is not None else ""
                return f"attempt {event.attempt_no} {guard}{self._goes_out(step)}"
            case "STEP_DISPATCHED":
                text = f"attempt {event.attempt_no} {self._goes_out(step)}"
            case "STEP_WAITING":
                text = _waits_for(event.data, event.at)
            case "APPROVAL_REQUESTED":
                text = f"{' or '.join(event.data['approvers'])} asked to approve{_at_most(event.data, event.at)}"
            case "STEP_STARTED":
                text = f"starts, with {event.data['total']} {'branches' if place.spec.parallel else 'items'}"
            case "STEP_SUCCEEDED" if place.spec.decision is not None:
                text = f"goes to {event.data['then']}{self._choice(step, place)}"
            case "STEP_FAILED" if step.step_id not in self._open:
                text = self._failure(event, step)
            case _:
                return None
        because = self._led_by.pop(self._scope(event.step_id, place), "")
        if place.handler_of is not None:
            because = f"undoes {place.handler_of}"
        elif place.container is None:
            self.path.append(Leg(step.step_id, because))
        self._open.add(step.step_id)
        if event.type in ("STEP_SUCCEEDED", "STEP_FAILED"):
            self._ended(event, place)
        return f"{text} ({because})" if because else text

    def _step(self, event: Event) -> Step:
        assert self._view is not None, "a decision was made"
        return self._view.steps[event.step_id or ""]

    def _scope(self, step_id: str | None, place: Place) -> tuple[str | None, str | None, tuple[int, ...]]:
        return place.container, place.branch, items_of(step_id or "")

    def _goes_out(self, step: Step) -> str:
        if step.service != HTTP_SERVICE:
            return f"goes to service {step.service}"
        assert step.request is not None, "a call has a request"
        return f"calls {step.request.method} {shortened(step.request.url, MAX_VALUE)}"

    def _choice(self, step: Step, place: Place) -> str:
        number = step.result.get("choice") if isinstance(step.result, dict) else None
        if place.spec.decision is None or number is None:
            return ", as no choice holds"
        return f", as {shortened(place.spec.decision.choices[number].when, MAX_VALUE)}"

    # And what becomes of it

    def _went_on(self, event: Event, place: Place) -> str | None:
        step = self._step(event)
        match event.type:
            case "STEP_SUCCEEDED":
                self._ended(event, place)
                return f"succeeded{_with(step.result)}"
            case "STEP_RETRY_SCHEDULED":
                self._retrying.add(step.step_id)
                return f"{_ended_how(event)}; tried again in {duration(event.data['retry_at'] - event.at)}"
            case "STEP_FAILED":
                self._ended(event, place)
                return self._failure(event, step)
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

    def _ended(self, event: Event, place: Place) -> None:
        """Note what this end leads to, for when that step starts."""
        self._open.discard(event.step_id or "")
        if event.type == "STEP_FAILED" and place.handler_of is None:
            late = event.data.get("cause") in _LATE
            by = "on_timeout" if late and place.spec.on_timeout is not None else "on_failure"
            self._led_by[self._scope(event.step_id, place)] = f"{by} of {event.step_id}"

    def _failure(self, event: Event, step: Step) -> str:
        message = step.last_error.message if step.last_error else ""
        return f"failed for good: {_ended_how(event)}{': ' + message if message else ''}"


def _ended_how(event: Event) -> str:
    cause, class_, code = (event.data.get(name) for name in ("cause", "failure_class", "error_code"))
    attempt = f"attempt {event.attempt_no}"
    if cause in (None, "FAILED"):
        named = f"{class_} ({code})" if class_ and code and code != class_ else code or class_
        return f"{attempt} failed with {named}" if named else f"{attempt} failed"
    return f"{attempt} ended with {code if code and code != 'SIMULATED' else cause}"


def _waits_for(data: dict[str, Any], at: Instant) -> str:
    if data.get("signal"):
        return f"waits for signal {data['signal']}{_at_most(data, at)}"
    return f"waits {duration(max(0, data['until'] - at))}"


def _at_most(data: dict[str, Any], at: Instant) -> str:
    until = data.get("until")
    return f", {duration(until - at)} at most" if until is not None else ""


def _with(result: Any) -> str:
    if result is None or result == {}:
        return ""
    return f" with {shortened(msgspec.json.encode(result).decode(), MAX_VALUE)}"


def _about_job(event: Event) -> str | None:
    data = event.data
    match event.type:
        case "JOB_ACCEPTED":
            return "the job is accepted"
        case "SIGNAL_RECEIVED":
            return f"signal {data['name']} comes"
        case "JOB_PAUSED" | "JOB_RESUMED":
            return f"{event.type.removeprefix('JOB_').lower()} by {data['by']}"
        case "CANCEL_REQUESTED":
            return f"{data['by']} asks to cancel"
        case "JOB_HELD":
            return "held until a person has decided about compensation"
        case "COMPENSATION_STARTED":
            return f"undoing {', '.join(data['steps'])}" if data["steps"] else "nothing to undo"
        case "STEP_COMPENSATED":
            return f"{data['of']} is undone by {data['handler']}"
        case "COMPENSATION_HALTED":
            return f"undoing stops at {data['handler']}; left: {', '.join(data['steps'])}"
        case "COMPENSATION_COMPLETED":
            return "all is undone" if data["steps"] else None
        case "REVIEW_OPENED":
            return f"a review item is opened: {data['kind']}"
        case "JOB_SUCCEEDED" | "JOB_CANCELLED":
            return f"the job has ended {event.type.removeprefix('JOB_')}"
        case "JOB_FAILED_FINAL":
            return f"the job has ended FAILED_FINAL: {data.get('error_code', '')}"
        case _:
            return None
