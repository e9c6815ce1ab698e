"""What a service author writes against: a Service, and functions that do its steps.

service = Service("ocr")

@service.step("OCR", params=OcrParams)
async def read_text(ctx: StepContext, params: OcrParams) -> StepResult: ...
"""

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from lucius.worker.context import StepContext, StepResult
from lucius.worker.failure import FailureClass, Mapped, NonRetryable

ANY_STEP = ""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")

RunIn = Literal["loop", "thread", "process"]
Function = TypeVar("Function", bound=Callable[..., Any])
Hook = Callable[[], Awaitable[None] | None]


class Step(Struct, frozen=True, kw_only=True):
    """One kind of step this service does, and how."""

    step_type: str
    execute: Callable[..., Any]
    params: Any
    run_in: RunIn


class Service:
    """One object serves all attempts of a process. `version` is told to operators; it changes nothing."""

    def __init__(self, name: str, *, version: str = "") -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a service name: lower-case letters, digits, '.', '_' and '-'")
        self.name = name
        self.version = version
        self.errors: dict[type[BaseException], Mapped] = {}
        self.startups: list[Hook] = []
        self.shutdowns: list[Hook] = []
        self.checks: dict[str, Hook] = {}
        self._steps: dict[str, Step] = {}
        self._guards: dict[str, Step] = {}

    def step(
        self, step_type: str = ANY_STEP, *, params: Any = None, run_in: RunIn | None = None
    ) -> Callable[[Function], Function]:
        """The function for a step type; without one, for every type that has no function of its own.

        An `async def` runs on the event loop, a plain `def` in a thread, and with `run_in="process"` in a process of
        its own. It gets the context, and with `params` also the payload as that type; a payload that does not fit
        fails the step for good.
        """
        return lambda function: self._add(self._steps, "step", step_type, function, params, run_in)

    def guard(
        self, step_type: str = ANY_STEP, *, params: Any = None, run_in: RunIn | None = None
    ) -> Callable[[Function], Function]:
        """Asked before a guarded step is done again: the result, if an attempt before took effect after all."""
        return lambda function: self._add(self._guards, "guard", step_type, function, params, run_in)

    def startup(self, hook: Function) -> Function:
        """Called before the first pull, to load a model or open a pool. A plain function may block."""
        self.startups.append(hook)
        return hook

    def shutdown(self, hook: Function) -> Function:
        """Called once everything has ended."""
        self.shutdowns.append(hook)
        return hook

    def check(self, hook: Function) -> Function:
        """Called for readiness: raises if something this service needs is away."""
        self.checks[hook.__name__] = hook
        return hook

    def map_error(self, error: type[BaseException], failure_class: FailureClass, *, code: str | None = None) -> None:
        """What an exception of a library stands for; `code` is the exception's name unless told."""
        self.errors[error] = Mapped(failure_class, code)

    @property
    def step_types(self) -> list[str]:
        return sorted(self._steps)

    def step_for(self, step_type: str) -> Step:
        """Raises NonRetryable if this service has no such step."""
        found = self._steps.get(step_type) or self._steps.get(ANY_STEP)
        if found is None:
            has = ", ".join(self.step_types) or "none"
            raise NonRetryable("UNKNOWN_STEP_TYPE", f"service {self.name} has no step {step_type!r}; it has: {has}")
        return found

    def guard_for(self, step_type: str) -> Step:
        """Raises NonRetryable if there is none: a guarded step may not be done again unguarded."""
        found = self._guards.get(step_type) or self._guards.get(ANY_STEP)
        if found is None:
            raise NonRetryable("GUARD_MISSING", f"service {self.name} can't tell whether {step_type} was done before")
        return found

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, as the environment says. The main of a service's process."""
        from lucius.worker.run import run_from_env  # noqa: PLC0415 - it imports what only a process needs

        run_from_env([self])

    def _add(
        self,
        steps: dict[str, Step],
        what: str,
        step_type: str,
        function: Function,
        params: Any,
        run_in: RunIn | None,
    ) -> Function:
        if step_type in steps:
            raise ValueError(f"service {self.name} has a {what} for {step_type or 'every step type'} already")
        is_async = inspect.iscoroutinefunction(function)
        chosen: RunIn = run_in or ("loop" if is_async else "thread")
        if is_async != (chosen == "loop"):
            raise ValueError(
                f"{function.__name__}: an async function runs on the loop, a plain one in thread or process"
            )
        steps[step_type] = Step(step_type=step_type, execute=function, params=params, run_in=chosen)
        return function


def call(function: Callable[..., Any], context: StepContext, params_type: Any) -> Any:
    """The function's result, or for an async one its coroutine."""
    if params_type is None:
        return function(context)
    return function(context, params_of(context.payload, params_type))


def params_of(payload: dict[str, Any], kind: Any) -> Any:
    """The payload as a typed record. Raises NonRetryable: what does not fit today will not tomorrow."""
    validate = getattr(kind, "model_validate", None)  # pydantic, without depending on it
    try:
        return validate(payload) if validate is not None else msgspec.convert(payload, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise NonRetryable("INVALID_PAYLOAD", str(error)) from error


def checked(result: object) -> StepResult:
    """None stands for an empty result; anything else that is no StepResult is the author's mistake."""
    if result is None:
        return StepResult()
    if not isinstance(result, StepResult):
        raise NonRetryable("INVALID_OUTPUT", f"the step returned {type(result).__name__}, not a StepResult")
    return result
