"""A case: a random protocol, a command for it, and a script of what goes wrong where.

The script depends on the seed and the job's position, never on time or chance, so both engines get the same script.
Only what the script lets time out has short timeouts.
"""

import random
from typing import Any

from msgspec.structs import replace

from lucius.core.protocol.definition import ProtocolDefinition, RetryPolicy, StepSpec, Wait
from tests.simulation.protocols import OUTSIDE, draw_protocol

LONG_MS = 120_000
SHORT_MS = {"unacked": 700, "silent": 900, "overlong": 1_100, "hanging": 800, "unheard": 700}
JOB_MS = 5_000
BACKOFFS_MS = (500, 800)

Plan = tuple[str, ...]

WORK: dict[Plan, float] = {
    ("ack", "ok"): 12,
    ("ok",): 4,
    ("ack", "beat", "ok"): 3,
    ("ack", "settle", "ok"): 3,
    ("beat", "ok"): 1,
    ("ack", "ack", "ok"): 1,
    ("ack", "ok", "ok"): 2,
    ("ack", "ok", "settle", "ok"): 1,
    ("ack", "ok", "settle", "other"): 1,
    ("ack", "ok", "settle", "ack"): 1,
    ("ack", "fail TRANSIENT"): 3,
    ("fail RETRYABLE",): 2,
    ("ack", "fail DEPENDENCY_FAILED"): 1,
    ("ack", "fail RATE_LIMITED"): 1,
    ("ack", "fail NON_RETRYABLE"): 1.5,
    ("ack", "fail COMPENSATION_REQUIRED"): 1,
    ("ack", "fail TRANSIENT", "settle", "fail TRANSIENT"): 0.5,
    ("ack", "fail TRANSIENT", "settle", "ok"): 1,
    ("ack", "fail TRANSIENT", "fenced", "ok"): 1,
    ("ack", "ok", "fenced", "beat"): 1,
}
UNDONE = ("", "rescue", "fenced")
"""Late behaviour of a service whose attempt has timed out: none, or an answer before or after the next attempt."""
STATUSES = {"200": 10, "500": 2, "502": 1, "400": 1, "409": 1.5, "424": 1}


class Case:
    """Case of one seed. `stretch` multiplies short timeouts, for machines too busy to answer in time."""

    def __init__(self, seed: int, stretch: int = 1) -> None:
        self.seed = seed
        self._stretch = stretch
        drawn = draw_protocol(random.Random(seed), seed)
        self.stalls = self.rng("stalls").random() < 0.06
        self._side_by_side = {name for spec in drawn.steps for name in _inside(spec)}
        self._timed = self.rng("timed").choice(sorted(self._side_by_side) or [""])
        self.protocol = replace(
            drawn,
            protocol_id=f"v{seed}x{stretch}",
            request_type=f"V{seed}X{stretch}",
            steps=tuple(map(self._shaped, drawn.steps)),
            policies=replace(drawn.policies, timeout_ms=JOB_MS * stretch if self.stalls else None),
        )
        rng = self.rng("input")
        self.payload = {"n": rng.randint(1, 9), "items": [rng.randint(1, 9) for _ in range(rng.randint(0, 3))]}

    @property
    def is_one_flow(self) -> bool:
        """True if steps only follow one another, so that all events have one order."""
        return not any(spec.kind in ("parallel", "map") for spec in self.protocol.steps)

    def rng(self, *where: object) -> random.Random:
        return random.Random("|".join(map(str, (self.seed, *where))))

    def manner(self, step_id: str) -> str:
        """Return how a step may time out, which decides the one of its timeouts that is short."""
        kinds = ("prompt", "unacked", "silent", "overlong")
        if step_id in self._side_by_side and step_id != self._timed:
            return "prompt"
        return self.rng("manner", step_id).choices(kinds, (14, 2, 2, 1))[0]

    def lets_time_out(self, step_id: str) -> bool:
        """Return True if a call, signal or approval may time out.

        Of parallel steps only one does: which of two timeouts comes first, and so ends the other, would be chance.
        """
        if step_id in self._side_by_side and step_id != self._timed:
            return False
        return self.rng("manner", step_id).random() < 0.15

    # Acts at a point

    def work(self, step_id: str, spec_id: str, attempt_no: int) -> Plan:
        """Return what a service does with an attempt."""
        rng, manner = self.rng("work", step_id, attempt_no), self.manner(spec_id)
        if manner == "prompt" or rng.random() < 0.4:
            return rng.choices([*WORK], [*WORK.values()])[0]
        begun = {"unacked": (), "silent": ("ack",), "overlong": ("ack", "beat")}[manner]
        after = rng.choice(UNDONE)
        return (*begun, after, rng.choice(("ok", "ok", "fail TRANSIENT"))) if after else (*begun, "gone")

    def response(self, step_id: str, spec_id: str, attempt_no: int) -> str:
        rng = self.rng("response", step_id, attempt_no)
        if self.lets_time_out(spec_id) and rng.random() < 0.6:
            return "hang"
        return rng.choices([*STATUSES], [*STATUSES.values()])[0]

    def is_patient(self, step_id: str, attempt_no: int) -> bool:
        """Return True if a late answer comes after the next attempt, rather than before."""
        return self.rng("patient", step_id, attempt_no).random() < 0.5

    def result(self, step_id: str, attempt_no: int) -> dict[str, Any]:
        rng = self.rng("result", step_id, attempt_no)
        return {"n": rng.randint(1, 9), "items": [rng.randint(1, 9) for _ in range(rng.randint(0, 3))]}

    def act(self, *where: object) -> str:
        """Return what an operator does to the job before it continues; mostly nothing."""
        rng = self.rng("act", *where)
        if rng.random() > 0.1:
            return ""
        acts = {"pause": 4, "cancel": 1.5, "signal": 2, "bad signal": 0.5, "retry": 0.5, "resume": 0.5, "stranger": 0.7}
        return rng.choices([*acts], [*acts.values()])[0]

    # The protocol with the script's timeouts

    def _shaped(self, spec: StepSpec) -> StepSpec:
        if spec.compensation is not None:
            spec = replace(spec, compensation=self._shaped(spec.compensation))
        if spec.kind in ("task", "external_call", "notify"):
            spec = replace(spec, retry_policy=self._retry(spec.retry_policy))
        match spec.kind:
            case "task":
                return self._task(spec)
            case "external_call" | "notify":
                return replace(spec, timeout_ms=self._patience(spec, "hanging"))
            case "human_approval":
                return replace(spec, timeout_ms=self._patience(spec, "unheard"))
            case "wait" if spec.wait is not None and spec.wait.signal is not None:
                return replace(spec, timeout_ms=self._patience(spec, "unheard"))
            case "wait" if spec.wait is not None and spec.wait.duration_ms is not None:
                return replace(spec, wait=Wait(duration_ms=self.rng("wait", spec.step_id).choice((1, 150, 400))))
            case "parallel" if spec.parallel is not None:
                inner = {name: tuple(map(self._shaped, steps)) for name, steps in spec.parallel.branches.items()}
                return replace(spec, parallel=replace(spec.parallel, branches=inner))
            case "map" if spec.map is not None:
                most = 1 if self._timed in _inside(spec) else spec.map.max_parallel
                steps = tuple(map(self._shaped, spec.map.steps))
                return replace(spec, map=replace(spec.map, steps=steps, max_parallel=most))
            case _:
                return spec

    def _task(self, spec: StepSpec) -> StepSpec:
        manner = self.manner(spec.step_id)
        return replace(
            spec,
            service=f"c{self.seed}x{self._stretch}-{spec.step_id}",  # its own service: the script decides when it pulls
            ack_timeout_ms=self._short(manner) if manner == "unacked" else LONG_MS,
            lease_ms=self._short(manner) if manner == "silent" else LONG_MS,
            timeout_ms=self._short(manner) if manner == "overlong" else None,
        )

    def _patience(self, spec: StepSpec, manner: str) -> int | None:
        if spec.timeout_ms is None:
            return None
        return self._short(manner) if self.lets_time_out(spec.step_id) else LONG_MS

    def _short(self, manner: str) -> int:
        return SHORT_MS[manner] * self._stretch

    def _retry(self, policy: RetryPolicy) -> RetryPolicy:
        """Return the policy with backoffs long enough to be observed, and without jitter."""
        first, second = (delay * self._stretch for delay in BACKOFFS_MS)
        return replace(
            policy,
            backoff_strategy="fixed" if policy.backoff_strategy == "jittered" else policy.backoff_strategy,
            initial_delay_ms=first if policy.initial_delay_ms else 0,
            max_delay_ms=second,
            handover_backoff_ms=(first,),
            ack_backoff_ms=(first, second),
            dependency_delay_ms=second,
        )


def _inside(spec: StepSpec) -> set[str]:
    """Return the ids of the steps in a container, at any depth."""
    branches = spec.parallel.branches.values() if spec.parallel is not None else ()
    lists = [*branches, spec.map.steps if spec.map is not None else ()]
    inner = [step for steps in lists for step in steps]
    return {step.step_id for step in inner}.union(*map(_inside, inner))


def document(case: Case, outside: str) -> ProtocolDefinition:
    """Return the protocol with its calls going to a real address."""

    def moved(spec: StepSpec) -> StepSpec:
        call, notify, undo = spec.external_call, spec.notify, spec.compensation
        if call is not None:
            guard = call.guard and replace(call.guard, url=call.guard.url.replace(OUTSIDE, outside))
            call = replace(call, url=call.url.replace(OUTSIDE, outside), guard=guard)
        if notify is not None:
            notify = replace(notify, url=notify.url.replace(OUTSIDE, outside))
        parallel, items = spec.parallel, spec.map
        if parallel is not None:
            inner = {name: tuple(map(moved, steps)) for name, steps in parallel.branches.items()}
            parallel = replace(parallel, branches=inner)
        if items is not None:
            items = replace(items, steps=tuple(map(moved, items.steps)))
        undo = None if undo is None else moved(undo)
        return replace(spec, external_call=call, notify=notify, compensation=undo, parallel=parallel, map=items)

    return replace(case.protocol, steps=tuple(map(moved, case.protocol.steps)))
