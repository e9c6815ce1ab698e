"""Definition of a service: its step functions, guards, hooks, checks and error mappings.

The runtime depends on this module; `Service`, which authors use, adds a process's main function on top of the runtime.
"""

import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from lucius.worker.context import StepContext, StepResult
from lucius.worker.failure import ErrorMapping, NonRetryable
from lucius.worker.failure_classes import FailureClass
from lucius.worker.hooks import Hook

ANY_STEP = ""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

RunIn = Literal["loop", "thread", "process"]
Function = TypeVar("Function", bound=Callable[..., Any])


class BadService(ValueError):
    """A service definition that cannot work; restarting does not help."""


class Step(Struct, frozen=True, kw_only=True):
    """Function for a step type, its parameter type, and where it runs."""

    step_type: str
    execute: Callable[..., Any]
    params: Any
    run_in: RunIn


class ServiceDefinition:
    """Registry of one service's functions, shared by all attempts of a process."""

    def __init__(self, name: str, *, version: str = "") -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a service name: 1 to 64 lower-case letters, digits, '_' and '-'")
        self.name = name
        self.version = version
        self.errors: dict[type[BaseException], ErrorMapping] = {}
        self.startups: list[Hook] = []
        self.shutdowns: list[Hook] = []
        self.checks: dict[str, Hook] = {}
        self._steps: dict[str, Step] = {}
        self._guards: dict[str, Step] = {}

    def step(
        self, step_type: str = ANY_STEP, *, params: Any = None, run_in: RunIn | None = None
    ) -> Callable[[Function], Function]:
        """Register the function for a step type, or without one for every type that has no function of its own.

        An `async def` runs on the event loop, a plain `def` in a thread, or with `run_in="process"` in a process of
        its own. It gets the context, and with `params` also the payload as that type; a payload that does not fit
        fails the step without retry. Raises TypeError or ValueError if the function or arguments are unusable.
        """
        _check_step_type(step_type, "step")
        return lambda function: self._add(self._steps, "step", step_type, function, params, run_in)

    def guard(
        self, step_type: str = ANY_STEP, *, params: Any = None, run_in: RunIn | None = None
    ) -> Callable[[Function], Function]:
        """Register the guard for a step type, called before a guarded step is executed again.

        It returns the StepResult if an earlier attempt took effect, else None: the step is then executed.
        """
        _check_step_type(step_type, "guard")
        return lambda function: self._add(self._guards, "guard", step_type, function, params, run_in)

    def startup(self, hook: Function) -> Function:
        """Register a hook to call before the first pull, such as loading a model. A plain function may block.

        Results left over by earlier processes are queued for sending before it runs.
        """
        self.startups.append(_hook(hook, "startup"))
        return hook

    def shutdown(self, hook: Function) -> Function:
        """Register a hook to call once all attempts have ended. After ten seconds the process ends without it."""
        self.shutdowns.append(_hook(hook, "shutdown"))
        return hook

    def check(self, hook: Function) -> Function:
        """Register a readiness check, which raises or returns False if something the service needs is unavailable."""
        name = _name_of(_hook(hook, "check")).rpartition(".")[2]
        if name in self.checks:
            raise ValueError(f"service {self.name} has a check {name} already")
        self.checks[name] = hook
        return hook

    def map_error(self, error: type[BaseException], failure_class: FailureClass, *, code: str | None = None) -> None:
        """Map a library's exception to a failure class; `code` defaults to the exception's name."""
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise TypeError(f"map_error takes the class of an exception, not {error!r}")
        self.errors[error] = ErrorMapping(FailureClass(failure_class), code)

    @property
    def step_types(self) -> list[str]:
        return sorted(self._steps)

    def step_for(self, step_type: str) -> Step:
        """Return the step for a type. Raises NonRetryable if the service has none."""
        found = self._steps.get(step_type) or self._steps.get(ANY_STEP)
        if found is None:
            has = ", ".join(self.step_types) or "none"
            raise NonRetryable("UNKNOWN_STEP_TYPE", f"service {self.name} has no step {step_type!r}; it has: {has}")
        return found

    def guard_for(self, step_type: str) -> Step:
        """Return the guard for a type. Raises NonRetryable if there is none: the step must not be repeated without."""
        found = self._guards.get(step_type) or self._guards.get(ANY_STEP)
        if found is None:
            raise NonRetryable(
                "GUARD_MISSING", f"service {self.name} has no guard that tells whether {step_type} was done before"
            )
        return found

    def check_processes(self) -> None:
        """Raise BadService if a child process could not import one of the functions by name."""
        for step in (*self._steps.values(), *self._guards.values()):
            if step.run_in == "process":
                try:
                    pickle.dumps((step.execute, step.params))
                except (pickle.PicklingError, AttributeError, TypeError) as error:
                    raise BadService(f"{_name_of(step.execute)} can't run in a process: {error}") from error

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
    except (TypeError, ValueError):  # some built-ins have no signature
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


def call_step(function: Callable[..., Any], context: StepContext, params_type: Any) -> Any:
    """Call a step's function with its context and parameters; an async one returns its coroutine."""
    if params_type is None:
        return function(context)
    return function(context, parse_params(context.payload, params_type))


def parse_params(payload: dict[str, Any], kind: Any) -> Any:
    """Convert the payload to a typed record. Raises NonRetryable INVALID_PAYLOAD: a retry would fail the same way."""
    validate = getattr(kind, "model_validate", None)  # pydantic, without depending on it
    try:
        return validate(payload) if validate is not None else msgspec.convert(payload, kind)
    except ValueError as error:  # as msgspec's and pydantic's errors are
        raise NonRetryable("INVALID_PAYLOAD", _reasons(error)) from error


def _reasons(error: ValueError) -> str:
    """Return what is wrong and where, without pydantic's own text, which quotes the payload at length."""
    details = getattr(error, "errors", None)
    if not callable(details):
        return str(error)
    return "; ".join(f"{'.'.join(map(str, found['loc'])) or 'payload'}: {found['msg']}" for found in details())


def check_result(result: object) -> StepResult:
    """Return the result, an empty one for None. Raises NonRetryable INVALID_OUTPUT for any other type."""
    if result is None:
        return StepResult()
    if not isinstance(result, StepResult):
        raise NonRetryable("INVALID_OUTPUT", f"the step returned {type(result).__name__}, not a StepResult")
    return result
