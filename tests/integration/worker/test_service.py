"""The author's interface, and early errors for mistakes in its use."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from lucius.worker import Service, StepContext, StepFailure, StepResult
from lucius.worker.host import host
from lucius.worker.settings import WorkerSettings
from lucius.worker.testing import run_step
from tests.integration.worker import step_functions


class StructParams(msgspec.Struct, frozen=True):
    pages: list[int]
    language: str = "en"


@dataclass
class DataclassParams:
    pages: list[int]
    language: str = "en"


class TypedDictParams(TypedDict):
    pages: list[int]


class PydanticParams(pydantic.BaseModel):
    pages: list[int]
    language: str = "en"


def counting_service(kind: Any) -> Service:
    service = Service("ocr")

    @service.step("OCR", params=kind)
    async def count(ctx: StepContext, params: Any) -> StepResult:
        assert isinstance(params, kind if kind is not TypedDictParams else dict)
        pages = params["pages"] if isinstance(params, dict) else params.pages
        return StepResult({"pages": len(pages)})

    return service


KINDS = [StructParams, DataclassParams, TypedDictParams, PydanticParams]


@pytest.mark.parametrize("kind", KINDS)
async def test_payload_is_decoded_as_the_declared_type(kind: Any, tmp_path: Path) -> None:
    outcome = await run_step(counting_service(kind), "OCR", {"pages": [1, 2]}, folder=tmp_path)
    assert (outcome.status, outcome.result) == ("SUCCEEDED", {"pages": 2})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("payload", "where"), [({"pages": [1, "x"]}, "pages"), ({}, "pages")])
async def test_invalid_payload_is_not_retried_and_names_the_field(
    kind: Any, payload: dict[str, Any], where: str, tmp_path: Path
) -> None:
    outcome = await run_step(counting_service(kind), "OCR", payload, folder=tmp_path)
    assert (outcome.failure_class, outcome.code) == ("NON_RETRYABLE", "INVALID_PAYLOAD")
    assert outcome.message is not None
    assert where in outcome.message
    assert len(outcome.message) < 100
    assert "\n" not in outcome.message


async def test_message_of_a_custom_validator_is_reported(tmp_path: Path) -> None:
    class Checked(msgspec.Struct):
        pages: list[int]

        def __post_init__(self) -> None:
            if not self.pages:
                raise ValueError("no page at all")

    outcome = await run_step(counting_service(Checked), "OCR", {"pages": []}, folder=tmp_path)
    assert (outcome.code, outcome.message) == ("INVALID_PAYLOAD", "no page at all")


async def test_step_without_a_type_handles_all_other_types(tmp_path: Path) -> None:
    service = Service("ocr")

    @service.step("A")
    async def a(ctx: StepContext) -> StepResult:
        return StepResult("a")

    @service.step("B")
    def b(ctx: StepContext) -> StepResult:
        return StepResult("b")

    assert (await run_step(service, "A", folder=tmp_path)).result == "a"
    assert (await run_step(service, "B", folder=tmp_path)).result == "b"
    unknown = await run_step(service, "C", folder=tmp_path)
    assert (unknown.failure_class, unknown.code) == ("NON_RETRYABLE", "UNKNOWN_STEP_TYPE")
    assert unknown.message == "service ocr has no step 'C'; it has: A, B"

    @service.step()
    async def rest(ctx: StepContext) -> StepResult:
        return StepResult(ctx.directive.step_type)

    assert (await run_step(service, "C", folder=tmp_path)).result == "C"
    assert (await run_step(service, "A", folder=tmp_path)).result == "a"


async def test_step_may_return_none_or_a_step_result_only(tmp_path: Path) -> None:
    service = Service("ocr")
    service.step("NOTHING")(step_functions.nothing)
    service.step("DICT")(step_functions.not_a_result)
    assert (await run_step(service, "NOTHING", folder=tmp_path)).succeeded
    wrong = await run_step(service, "DICT", folder=tmp_path)
    assert (wrong.failure_class, wrong.code) == ("NON_RETRYABLE", "INVALID_OUTPUT")
    assert wrong.message == "the step returned dict, not a StepResult"


# Mistakes


async def on_loop(ctx: StepContext) -> StepResult:
    return StepResult()


def in_thread(ctx: StepContext) -> StepResult:
    return StepResult()


async def yielding(ctx: StepContext) -> AsyncIterator[StepResult]:
    yield StepResult()


def generating(ctx: StepContext) -> Iterator[StepResult]:
    yield StepResult()


def two_arguments(ctx: StepContext, params: Any) -> StepResult:
    return StepResult()


def no_argument() -> StepResult:
    return StepResult()


MISTAKES: list[tuple[Callable[[Service], object], str]] = [
    (lambda s: s.step(on_loop), r"write @service.step\(\) with parentheses"),  # type: ignore[arg-type]
    (lambda s: s.guard(on_loop), r"write @service.guard\(\) with parentheses"),  # type: ignore[arg-type]
    (lambda s: s.step("A", run_in="proces")(in_thread), "run_in is one of loop, thread, process, not 'proces'"),  # type: ignore[arg-type]
    (lambda s: s.step("A", run_in="thread")(on_loop), "an async function runs on the loop"),
    (lambda s: s.step("A", run_in="loop")(in_thread), "a plain one in thread or process"),
    (lambda s: s.step("A", run_in="process")(lambda ctx: None), "a function of a module"),
    (lambda s: s.step("A", run_in="process")(partial(in_thread)), "a function of a module"),
    (lambda s: s.step("A")(yielding), "yielding yields; a step returns"),
    (lambda s: s.step("A")(generating), "generating yields; a step returns"),
    (lambda s: s.step("A")(no_argument), "no_argument.* is called with the context"),
    (lambda s: s.step("A", params=StructParams)(on_loop), "is called with the context and the parameters"),
    (lambda s: s.step("A", params=object())(two_arguments), "nothing that a payload can be made into"),
    (lambda s: (s.step("A")(on_loop), s.step("A")(on_loop)), "service ocr has a step for A already"),
    (lambda s: (s.step()(on_loop), s.step()(on_loop)), "has a step for every step type already"),
    (lambda s: (s.guard("A")(on_loop), s.guard("A")(on_loop)), "service ocr has a guard for A already"),
    (lambda s: (s.check(no_argument), s.check(no_argument)), "has a check no_argument already"),
    (lambda s: s.startup(in_thread), "in_thread.* is called with no argument"),
    (lambda s: s.shutdown(in_thread), "in_thread.* is called with no argument"),
    (lambda s: s.check(in_thread), "in_thread.* is called with no argument"),
    (lambda s: s.startup(None), "written without parentheses"),  # type: ignore[type-var]
]


@pytest.mark.parametrize(("mistake", "said"), MISTAKES)
def test_invalid_registration_is_refused_where_it_is_written(mistake: Callable[[Service], object], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        mistake(Service("ocr"))


@pytest.mark.parametrize("name", ["", "a.b", "a" * 65, "OCR", "a b", "-a", "a/b", "a" * 129])
def test_invalid_service_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a service name"):
        Service(name)


def test_decorators_return_the_function_unchanged() -> None:
    service = Service("ocr")
    assert service.step("A")(in_thread) is in_thread
    assert service.step_for("A").run_in == "thread"
    assert service.startup(no_argument) is no_argument


async def run_host(*services: Service) -> None:
    await host(services, WorkerSettings(handle_signals=False))


async def test_unusable_services_are_refused_at_start() -> None:
    with pytest.raises(ValueError, match=r"service ocr has no step"):
        await run_host(Service("ocr"))
    twice = Service("ocr")
    twice.step()(on_loop)
    with pytest.raises(ValueError, match="two services ocr"):
        await run_host(twice, twice)
    hidden = Service("ocr")
    hidden.step(run_in="process")(_renamed(in_thread))
    with pytest.raises(ValueError, match="can't run in a process"):
        await run_host(hidden)


def _renamed(function: Callable[..., Any]) -> Callable[..., Any]:
    def copy(ctx: StepContext) -> Any:
        return function(ctx)

    copy.__qualname__ = "no_such_name"
    return copy


def test_step_failure_can_be_raised_and_shows_code_and_message() -> None:
    with pytest.raises(StepFailure, match="CODE: words"):
        raise StepFailure("CODE", "words")
