"""Which steps of a large job go into one payload."""

import pytest
from msgspec.structs import replace

from lucius.core.decision import JobView
from lucius.core.protocol import StepSpec
from lucius.engine.temporal import parts
from lucius.engine.temporal.parts import first_part, joined, next_part
from tests.support.engine import Engine


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_BYTES", 10_000)


async def view_of(*sizes: int) -> JobView:
    """A job with a step under way, and others before it that came to something of such a size."""
    engine = Engine()
    await engine.submit(StepSpec(step_id="now", step_type="OCR", service="ocr"))
    view = await engine.ledger.job("job-1")
    assert view is not None
    now = view.steps["now"]
    done = [
        replace(now, step_id=f"s{n}", result="x" * size, updated_at=now.updated_at + n) for n, size in enumerate(sizes)
    ]
    return replace(view, steps={step.step_id: step for step in (*done, now)})


async def test_a_small_job_is_told_at_once_and_nothing_is_ever_asked_for() -> None:
    part = first_part(await view_of(100, 100))
    assert {step.step_id for step in part.steps} == {"now", "s0", "s1"}
    assert part.asked is None


async def test_of_a_large_one_what_is_under_way_is_told_first_and_then_what_was_changed_last() -> None:
    part = first_part(await view_of(4_000, 4_000, 4_000))
    assert [step.step_id for step in part.steps] == ["now", "s2", "s1"]
    assert part.asked == ["now", "s2", "s1"]


async def test_what_is_wanted_comes_in_as_many_parts_as_it_needs_and_what_never_started_counts_as_told() -> None:
    whole = await view_of(4_000, 4_000, 20_000)
    wanted, told = ["s2", "s0", "s1", "later"], []
    view = replace(whole, steps={"now": whole.steps["now"]}, asked=frozenset({"now"}))
    while missing := [step_id for step_id in wanted if step_id not in (view.asked or ())]:
        part = next_part(whole, missing)
        told.append([step.step_id for step in part.steps])
        view = joined(view, part)
    assert told == [["s2"], ["s0", "s1"]]
    assert view.steps == whole.steps
    assert view.asked == frozenset({"now", "s0", "s1", "s2", "later"})


async def test_what_is_known_already_is_newer_than_what_is_told() -> None:
    whole = await view_of(100)
    newer = replace(whole.steps["s0"], result="newer")
    view = joined(replace(whole, steps={"s0": newer}, asked=frozenset({"s0"})), next_part(whole, ["s0"]))
    assert view.steps["s0"].result == "newer"
