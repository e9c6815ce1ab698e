"""What the orchestrator knows of its attempts, and how it judges what a service says about them.

The rules are the product's own: a callback must carry the token of the attempt it names (401, 403), fit the contract
(422), and name the step's current attempt (409 STALE); then it is APPLIED, a DUPLICATE of what was applied, or LATE.
Nothing is forgotten: every callback stays with its instant and the answer it got.
"""

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from lucius.conformance.directives import soon
from lucius.contract import AckCallback, HeartbeatCallback, ResultCallback

Kind = Literal["ack", "heartbeat", "result"]
KINDS: tuple[Kind, ...] = ("ack", "heartbeat", "result")
MODELS: dict[str, type[AckCallback]] = {"ack": AckCallback, "heartbeat": HeartbeatCallback, "result": ResultCallback}
RESCUE_SECONDS = 5.0  # after a lost lease a success still counts, until the next attempt is made
TYPE_ROOT = "https://lucius.dev/problems/"

now = time.monotonic


class Key(NamedTuple):
    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str


class Answer(Struct, frozen=True):
    status: int
    body: dict[str, Any]
    retry_after: float | None = None

    @property
    def disposition(self) -> str:
        return str(self.body.get("disposition") or "")


class Said(Struct, kw_only=True):
    """One callback as it came, and what it was answered."""

    at: float
    kind: Kind
    token: str
    body: Any
    request: int
    url: str = ""
    """Where it came to."""
    answer: Answer | None = None
    answered_at: float | None = None
    refusal: Answer | None = None
    """What is wrong with it by the contract, whatever a case made us answer."""

    @property
    def status(self) -> int:
        return self.answer.status if self.answer else 0

    @property
    def disposition(self) -> str:
        return self.answer.disposition if self.answer else ""

    @property
    def says(self) -> bytes:
        """What a RESULT says, without what may differ between two ways to say it."""
        names = ("status", "result", "artifact_refs", "failure_class", "error", "retry_after_seconds")
        told = {name: self.body.get(name) for name in names} if isinstance(self.body, dict) else self.body
        return msgspec.json.encode(told, order="deterministic")


class Attempt(Struct, kw_only=True, eq=False):
    directive: dict[str, Any]
    key: Key
    token: str
    ack_seconds: float
    lease_seconds: float
    handed_over: list[float] = field(default_factory=list)
    heard: list[Said] = field(default_factory=list)
    acked_at: float | None = None
    lease_until: float | None = None
    ended_by: Said | None = None
    fenced: bool = False
    cancel_requested: bool = False
    disowned: bool = False
    """Made to be spoilt: whatever is said of it is no fault."""
    answers: Callable[[Said], Answer | None] | None = None
    """A case's own answer instead of the judgement's; None for those it leaves alone."""

    def of(self, kind: Kind) -> list[Said]:
        return [said for said in self.heard if said.kind == kind]

    @property
    def acks(self) -> list[Said]:
        return self.of("ack")

    @property
    def beats(self) -> list[Said]:
        return self.of("heartbeat")

    @property
    def results(self) -> list[Said]:
        return self.of("result")

    @property
    def first_handed_over(self) -> float:
        return self.handed_over[0]

    @property
    def ack_due(self) -> float:
        return self.handed_over[0] + self.ack_seconds


class Book:
    """All attempts of one case. `on_news` is called after each change."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.attempts: dict[Key, Attempt] = {}
        self.said: list[Said] = []
        self.implied: Callable[[Attempt], None] = lambda _: None
        """A callback came of an attempt that nobody was seen to take: whoever sent it hears that somebody did."""
        self._by_token: dict[str, Attempt] = {}
        self._on_news = on_news

    def add(self, directive: dict[str, Any], ack_seconds: float) -> Attempt:
        key = Key(directive["jobId"], directive["stepId"], directive["attempt_no"], directive["lease_id"])
        attempt = Attempt(
            directive=directive,
            key=key,
            token=directive["callback_token"],
            ack_seconds=ack_seconds,
            lease_seconds=directive["lease_seconds"],
        )
        self.attempts[key] = attempt
        self._by_token[attempt.token] = attempt
        return attempt

    def handed_over(self, attempt: Attempt) -> None:
        attempt.handed_over.append(now())
        self._on_news()

    def refuse_unheard(self, said: Said, answer: Answer) -> None:
        """The server was in no mood: it came, and nothing was made of it."""
        self._enter(said)
        attempt = self._by_token.get(said.token)
        if attempt is not None and said.refusal is None:
            attempt.heard.append(said)
        said.answer = answer
        self._on_news()

    def hear(self, said: Said) -> Answer:
        self._enter(said)
        said.answer = self._judge(said)
        self._on_news()
        return said.answer

    def give_fresh_periods(self) -> None:
        """After our own downtime: what services did meanwhile must not be fenced for it."""
        for attempt in self.attempts.values():
            if attempt.lease_until is not None:
                attempt.lease_until = now() + attempt.lease_seconds

    def faults(self) -> list[str]:
        """What the service said that no orchestrator would take, in words."""
        disowned = {attempt.token for attempt in self.attempts.values() if attempt.disowned}
        return [
            f"{'an' if said.kind == 'ack' else 'a'} {said.kind.upper()} {said.refusal.body['detail']}"
            for said in self.said
            if said.refusal and said.token not in disowned
        ]

    def _enter(self, said: Said) -> None:
        self.said.append(said)
        attempt = self._by_token.get(said.token)
        if attempt is not None and not attempt.handed_over:
            self.implied(attempt)
        said.refusal = self._refusal(said)

    def _refusal(self, said: Said) -> Answer | None:
        attempt = self._by_token.get(said.token)
        if attempt is None:
            words = f"the token {said.token[:8]}…, which no directive carried" if said.token else "no token"
            return problem(401, "INVALID_CALLBACK_TOKEN", f"came with {words}")
        if not isinstance(said.body, dict):
            return problem(422, "INVALID_CALLBACK", "is not a JSON object")
        known = {member: value for member, value in said.body.items() if value is not None}
        try:
            named = msgspec.convert(known, MODELS[said.kind])
        except msgspec.ValidationError as error:
            return problem(422, "INVALID_CALLBACK", f"does not fit the contract: {error}")
        if wrong := _mismatch(named, attempt):
            return problem(403, "CALLBACK_TOKEN_MISMATCH", wrong)
        wanted = attempt.directive["callback_urls"][said.kind]
        if _has_come(said.url, wanted):
            return None
        return problem(404, "NOT_FOUND", f"came to {said.url}, and its directive's callback_urls name {wanted}")

    def _judge(self, said: Said) -> Answer:
        if said.refusal is not None:
            return said.refusal
        attempt = self._by_token[said.token]
        attempt.heard.append(said)
        told = attempt.answers(said) if attempt.answers else None
        return told or _applied(attempt, said)


def _has_come(url: str, wanted: str) -> bool:
    """Whether it came to where it should. The batch is another way to say what the orchestrator itself is told."""
    root = wanted.rpartition("/")[0]
    return url in ("", wanted) or (url == f"{root}:batch" and root.endswith("/v1/callbacks"))


def _mismatch(named: AckCallback, attempt: Attempt) -> str:
    spoken = (named.jobId, named.stepId, named.attempt_no, named.lease_id, named.tenant_id)
    meant = (*attempt.key, attempt.directive["tenant_id"])
    members = ("jobId", "stepId", "attempt_no", "lease_id", "tenant_id")
    wrong = [f"{member} {said!r}" for member, said, want in zip(members, spoken, meant, strict=True) if said != want]
    if not wrong:
        return ""
    return f"came with the token of {attempt.directive['message_id']} and names another {', '.join(wrong)}"


def _applied(attempt: Attempt, said: Said) -> Answer:
    if attempt.fenced:
        return stale(attempt)
    if attempt.ended_by is not None:
        return _after_the_end(attempt, said)
    if _is_lost(attempt, said):
        return answer(attempt, "LATE", soon(RESCUE_SECONDS))
    said_before = said.kind == "ack" and attempt.acked_at is not None
    if attempt.acked_at is None:
        attempt.acked_at = said.at  # heartbeat and RESULT imply pickup
    attempt.lease_until = said.at + attempt.lease_seconds
    if said.kind == "result":
        attempt.ended_by = said
        return answer(attempt, "APPLIED", None)
    return answer(attempt, "DUPLICATE" if said_before else "APPLIED", soon(attempt.lease_seconds))


def _after_the_end(attempt: Attempt, said: Said) -> Answer:
    assert attempt.ended_by is not None
    same = said.kind == "ack" or (said.kind == "result" and said.says == attempt.ended_by.says)
    return answer(attempt, "DUPLICATE" if same else "LATE", None)


def _is_lost(attempt: Attempt, said: Said) -> bool:
    """Whether a deadline has passed; a success is taken all the same, as long as no other attempt was made."""
    if said.kind == "result" and said.body.get("status") == "SUCCEEDED":
        return False
    until = attempt.lease_until if attempt.acked_at is not None else attempt.ack_due
    return until is not None and said.at > until


def answer(attempt: Attempt, disposition: str, lease_expires_at: str | None) -> Answer:
    body = {
        "disposition": disposition,
        "lease_expires_at": lease_expires_at,
        "cancel_requested": attempt.cancel_requested,
    }
    return Answer(200, body)


def stale(attempt: Attempt) -> Answer:
    told = "another attempt or lease of this step is current; stop working on this one"
    return problem(409, "STALE_CALLBACK", told, disposition="STALE", jobId=attempt.key.job_id)


def problem(status: int, code: str, detail: str, retry_after: float | None = None, **more: Any) -> Answer:
    body = {
        "type": TYPE_ROOT + code.lower().replace("_", "-"),
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "code": code,
        "detail": detail,
        **more,
    }
    if retry_after is not None:
        body["retry_after_seconds"] = retry_after
    return Answer(status, body, retry_after)
