"""The helper with which service authors test their steps."""

from pathlib import Path

import pytest

from lucius.contract import StepInput
from lucius.worker import RateLimited, Service, StepContext, StepResult, StopReason
from lucius.worker.context import LocalChannel
from lucius.worker.testing import run_step

service = Service("upper")


@service.step("UPPER")
async def upper(ctx: StepContext) -> StepResult:
    text = (await ctx.workspace.read(ctx.directive.input_ref)).decode().upper()
    ref = await ctx.workspace.write("upper.txt", text.encode())
    if ctx.last_step:
        await ctx.workspace.write_output(text.encode())
    return StepResult({"chars": len(text), "before": ctx.inputs["ocr"].result if ctx.inputs else None}, [ref])


@service.step("BUSY")
def busy(ctx: StepContext) -> StepResult:
    raise RateLimited("BUSY", "later", retry_after_seconds=ctx.payload["seconds"])


@service.step("WAITING")
async def waiting(ctx: StepContext) -> StepResult:
    ctx.progress(0.25)
    return StepResult(str(await ctx.wait_stop()))


async def test_step_runs_with_a_document_and_leaves_its_files(tmp_path: Path) -> None:
    outcome = await run_step(service, "UPPER", folder=tmp_path, input=b"hello")
    assert outcome.succeeded
    assert outcome.result == {"chars": 5, "before": None}
    assert (outcome.folder / "upper.txt").read_text() == outcome.output.read_text() == "HELLO"
    assert outcome.artifact_refs == [f"file://{outcome.folder}/upper.txt", f"file://{outcome.output}"]
    assert (outcome.folder / "manifest.json").exists()


async def test_results_of_earlier_steps_and_other_directive_fields_can_be_given(tmp_path: Path) -> None:
    given = {"ocr": StepInput({"pages": 2})}
    outcome = await run_step(
        service, "UPPER", folder=tmp_path, input=b"x", inputs=given, last_step=False, stepId="second", attempt_no=4
    )
    assert outcome.result["before"] == {"pages": 2}
    assert outcome.folder == tmp_path / "workspace/second/4"
    assert not outcome.output.exists()


async def test_failed_step_returns_an_outcome(tmp_path: Path) -> None:
    outcome = await run_step(service, "BUSY", {"seconds": 7}, folder=tmp_path)
    assert not outcome.succeeded
    assert (outcome.failure_class, outcome.code, outcome.message) == ("RATE_LIMITED", "BUSY", "later")
    assert outcome.retry_after_seconds == 7
    missing = await run_step(service, "UPPER", folder=tmp_path)
    assert missing.code == "INPUT_NOT_FOUND"


async def test_stop_reason_can_be_given_by_the_channel(tmp_path: Path) -> None:
    line = LocalChannel()
    line.stop(StopReason.CANCELLED)
    outcome = await run_step(service, "WAITING", folder=tmp_path, line=line)
    assert (outcome.result, line.last_progress) == ("CANCELLED", 0.25)


async def test_unknown_directive_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no_such"):
        await run_step(service, "BUSY", folder=tmp_path, no_such=1)
