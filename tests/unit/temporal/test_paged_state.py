"""Distribution of the steps of a large job over payloads."""

import pytest
from msgspec.structs import replace

from lucius.core.model.decision import JobSnapshot
from lucius.core.protocol.definition import StepSpec
from lucius.engine.temporal import paged_state
from lucius.engine.temporal.paged_state import first_part, joined, next_part
from tests.support.engine import Engine


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_state, "MAX_STEPS_BYTES", 10_000)


async def view_of(*sizes: int) -> JobSnapshot:
    """Return a job with one active step, after completed steps with results of these sizes."""
    engine = Engine()
    await engine.submit(StepSpec(step_id="now", step_type="OCR", service="ocr"))
    view = await engine.store.jobs.job("job-1")
    assert view is not None
    now = view.steps["now"]
    done = [
        replace(now, step_id=f"s{n}", result="x" * size, updated_at=now.updated_at + n) for n, size in enumerate(sizes)
    ]
    return replace(view, steps={step.step_id: step for step in (*done, now)})


async def test_small_job_is_loaded_at_once() -> None:
    part = first_part(await view_of(100, 100))
    assert {step.step_id for step in part.steps} == {"now", "s0", "s1"}
    assert part.asked is None


async def test_large_job_loads_active_then_latest_steps() -> None:
    part = first_part(await view_of(4_000, 4_000, 4_000))
    assert [step.step_id for step in part.steps] == ["now", "s2", "s1"]
    assert part.asked == ["now", "s2", "s1"]


async def test_wanted_steps_load_in_parts_and_unstarted_steps_count_as_loaded() -> None:
    whole = await view_of(4_000, 4_000, 20_000)
    wanted, loaded = ["s2", "s0", "s1", "later"], []
    view = replace(whole, steps={"now": whole.steps["now"]}, asked=frozenset({"now"}))
    while missing := [step_id for step_id in wanted if step_id not in (view.asked or ())]:
        part = next_part(whole, missing)
        loaded.append([step.step_id for step in part.steps])
        view = joined(view, part)
    assert loaded == [["s2"], ["s0", "s1"]]
    assert view.steps == whole.steps
    assert view.asked == frozenset({"now", "s0", "s1", "s2", "later"})


async def test_known_steps_win_over_loaded_ones() -> None:
    whole = await view_of(100)
    newer = replace(whole.steps["s0"], result="newer")
    view = joined(replace(whole, steps={"s0": newer}, asked=frozenset({"s0"})), next_part(whole, ["s0"]))
    assert view.steps["s0"].result == "newer"
