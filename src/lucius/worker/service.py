"""What a service author writes against: a Service, and functions that do its steps.

service = Service("ocr")

@service.step("OCR", params=OcrParams)
async def read_text(ctx: StepContext, params: OcrParams) -> StepResult: ...
"""

import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from lucius.worker.context import StepContext, StepResult
from lucius.worker.failure import FailureClass, Mapped, NonRetryable
from lucius.worker.hooks import Hook

ANY_STEP = ""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

RunIn = Literal["loop", "thread", "process"]
Function = TypeVar("Function", bound=Callable[..., Any])


class BadService(ValueError):
    """A service that could not do its work, however often it is started."""


class Step(Struct, frozen=True, kw_only=True):
    """One kind of step this service does, and how."""

    step_type: str
    execute: Callable[..., Any]
    params: Any
    run_in: RunIn


class Service:
    """One object serves all attempts of a process. `version` is for operators: the log and `/healthz` show it."""

    def __init__(self, name: str, *, version: str = "") -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a service name: 1 to 64 lower-case letters, digits, '_' and '-'")
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
        _check_step_type(step_type, "step")
        return lambda function: self._add(self._steps, "step", step_type, function, params, run_in)

    def guard(
        self, step_type: str = ANY_STEP, *, params: Any = None, run_in: RunIn | None = None
    ) -> Callable[[Function], Function]:
        """Asked before a guarded step is done again: the result, if an attempt before took effect after all."""
        _check_step_type(step_type, "guard")
        return lambda function: self._add(self._guards, "guard", step_type, function, params, run_in)

    def startup(self, hook: Function) -> Function:
        """Called before the first pull, to load a model or open a pool. A plain function may block.

        What was left over from processes before us is sent off first, and does not wait for it."""
        self.startups.append(_hook(hook, "startup"))
        return hook

    def shutdown(self, hook: Function) -> Function:
        """Called once everything has ended. It has ten seconds: the process ends without it."""
        self.shutdowns.append(_hook(hook, "shutdown"))
        return hook

    def check(self, hook: Function) -> Function:
        """Called for readiness: raises, or returns False, if something this service needs is away."""
        name = _name_of(_hook(hook, "check")).rpartition(".")[2]
        if name in self.checks:
            raise ValueError(f"service {self.name} has a check {name} already")
        self.checks[name] = hook
        return hook

    def map_error(self, error: type[BaseException], failure_class: FailureClass, *, code: str | None = None) -> None:
        """What an exception of a library stands for; `code` is the exception's name unless told."""
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise TypeError(f"map_error takes the class of an exception, not {error!r}")
        self.errors[error] = Mapped(FailureClass(failure_class), code)

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

    def check_processes(self) -> None:
        """Raises BadService if a process could not find one of its functions by name."""
        for step in (*self._steps.values(), *self._guards.values()):
            if step.run_in == "process":
                try:
                    pickle.dumps((step.execute, step.params))
                except (pickle.PicklingError, AttributeError, TypeError) as error:
                    raise BadService(f"{_name_of(step.execute)} can't run in a process: {error}") from error

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
        chosen = _place_of(function, run_in)
        _check_arguments(function, ["the context"] if params is None else ["the context", "the parameters"])
        if params is not None:
            _check_params(params)
        steps[step_type] = Step(step_type=step_type, execute=function, params=params, run_in=chosen)
        return function


def _check_step_type(step_type: object, what: str) -> None:
    if not isinstance(step_type, str):
        raise TypeError(f"write @service.{what}() with parentheses, and the step type between them")


def _place_of(function: Callable[..., Any], run_in: RunIn | None) -> RunIn:
    name = _name_of(function)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{name} yields; a step returns a StepResult")
    is_async = inspect.iscoroutinefunction(function)
    chosen = run_in or ("loop" if is_async else "thread")
    if chosen not in get_args(RunIn):
        raise ValueError(f"{name}: run_in is one of {', '.join(get_args(RunIn))}, not {chosen!r}")
    if is_async != (chosen == "loop"):
        raise ValueError(f"{name}: an async function runs on the loop, a plain one in thread or process")
    if chosen == "process" and ("<" in name or inspect.ismethod(function)):
        raise ValueError(f"{name}: what runs in a process is a function of a module, so that the process finds it")
    return chosen


def _check_arguments(function: Callable[..., Any], given: list[str]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # something built in: nobody can tell
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        wanted = " and ".join(given) or "no argument"
        raise TypeError(f"{_name_of(function)}{signature} is called with {wanted}: {error}") from None


def _check_params(kind: Any) -> None:
    if not hasattr(kind, "model_validate"):
        try:
            msgspec.json.Decoder(kind)
        except TypeError as error:
            raise TypeError(f"params={kind!r} is nothing that a payload can be made into: {error}") from None


def _hook(hook: Function, what: str) -> Function:
    if not callable(hook):
        raise TypeError(f"@service.{what} is written without parentheses, above a function")
    _check_arguments(hook, [])
    return hook


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


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
    except ValueError as error:  # as msgspec's and pydantic's errors are
        raise NonRetryable("INVALID_PAYLOAD", _reasons(error)) from error


def _reasons(error: ValueError) -> str:
    """What is wrong and where. Pydantic's own words quote the payload at length."""
    details = getattr(error, "errors", None)
    if not callable(details):
        return str(error)
    return "; ".join(f"{'.'.join(map(str, found['loc'])) or 'payload'}: {found['msg']}" for found in details())


def checked(result: object) -> StepResult:
    """None stands for an empty result; anything else that is no StepResult is the author's mistake."""
    if result is None:
        return StepResult()
    if not isinstance(result, StepResult):
        raise NonRetryable("INVALID_OUTPUT", f"the step returned {type(result).__name__}, not a StepResult")
    return result
