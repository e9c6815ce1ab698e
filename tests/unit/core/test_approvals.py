"""Approvals: who may, how many must, reject and timeout paths; a second vote, or one after the end, is refused."""

import pytest
from msgspec.structs import replace

from lucius.adapters.expressions import CelTools
from lucius.core.decision import Applied, Ignored
from lucius.core.model import NEVER, AttemptOutcome, BlockedReason, JobStatus
from tests.unit.core.acts import code_of
from tests.unit.core.builders import MINUTE, T0, Story
from tests.unit.core.shapes import approval, parallel, pause_for, protocol, task


def asked(**fields: object) -> Story:
    return Story(protocol(approval("ok", **fields), task("a"), task("b"))).dispatched()  # type: ignore[arg-type]


class TestAsking:
    def test_a_job_that_only_waits_for_people_says_so(self) -> None:
        story = asked(timeout_ms=MINUTE)
        assert (story.status, story.status_of("ok")) == (JobStatus.WAITING_APPROVAL, "AWAITING_APPROVAL")
        assert story.job.blocked is not None
        assert (story.job.blocked.reason, story.job.blocked.until) == (BlockedReason.APPROVAL, T0 + MINUTE)
        assert story.books.events[-1].data == {"approvers": ["ada", "bob", "cleo"], "until": T0 + MINUTE}

    def test_without_a_timeout_it_waits_as_long_as_it_takes(self) -> None:
        assert asked().job.due_at == NEVER

    def test_while_something_runs_beside_it_the_job_is_in_progress(self) -> None:
        story = Story(protocol(parallel("p", approval("ok"), task("a")))).dispatched()
        assert story.status == "IN_PROGRESS"
        story.do("a")
        assert story.status == "WAITING_APPROVAL"

    def test_a_timer_beside_it_is_no_work(self) -> None:
        story = Story(protocol(parallel("p", pause_for("w", MINUTE), approval("ok")))).dispatched()
        assert story.status is JobStatus.WAITING_APPROVAL
        assert story.job.blocked is not None
        assert story.job.blocked.step_id == "ok"

    def test_the_prompt_is_rendered_for_who_reads_it(self) -> None:
        shape = protocol(approval("ok", prompt="pay ${input.sum} EUR?"))
        story = Story(shape, payload={"sum": 7}).dispatched()
        assert story.steps["ok"].result == {"prompt": "pay 7 EUR?"}

    def test_a_prompt_is_shown_without_the_escapes_of_templates(self) -> None:
        shape = protocol(approval("ok", prompt="pay $${sum} for ${input.what}?"))
        story = Story(shape, payload={"what": "${secrets.KEY}"})
        story.env = replace(story.env, tools=CelTools())
        story.dispatched()
        assert story.steps["ok"].result == {"prompt": "pay ${sum} for ${secrets.KEY}?"}


class TestVoting:
    def test_one_yes_is_enough_unless_more_are_asked_for(self) -> None:
        story = asked()
        assert story.approve("ok", comment="fine") == Applied()
        assert story.steps["ok"].result == {"approvals": [{"by": "ada", "comment": "fine", "at": T0}]}
        assert (story.status, story.job.active) == (JobStatus.IN_PROGRESS, ("a",))

    def test_a_quorum_is_of_different_people(self) -> None:
        story = asked(quorum=2)
        story.approve("ok", "ada")
        assert code_of(story.approve("ok", "ada")) == "ALREADY_VOTED"
        assert code_of(story.reject("ok", "ada")) == "ALREADY_VOTED"
        assert story.status is JobStatus.WAITING_APPROVAL
        story.approve("ok", "bob")
        assert story.job.active == ("a",)

    def test_one_no_is_enough(self) -> None:
        story = asked(quorum=2)
        story.approve("ok", "ada")
        story.reject("ok", "bob", comment="too dear")
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "REJECTED"
        assert "rejected by bob: too dear" in story.job.error.message
        assert story.steps["ok"].attempt.outcome is AttemptOutcome.REJECTED

    def test_a_no_can_have_a_path_of_its_own(self) -> None:
        story = asked(on_failure="b", on_timeout="a")
        story.reject("ok")
        assert story.job.active == ("b",)

    def test_so_can_silence(self) -> None:
        story = asked(on_failure="a", on_timeout="b", timeout_ms=MINUTE)
        assert isinstance(story.wait(MINUTE - 1).tick(), Ignored)
        story.wait(1).tick()
        assert story.job.active == ("b",)
        assert story.steps["ok"].last_error is not None
        assert story.steps["ok"].last_error.code == "APPROVAL_TIMEOUT"

    @pytest.mark.parametrize("decide", ["approve", "reject"])
    def test_a_vote_after_the_decision_is_refused(self, decide: str) -> None:
        story = asked(on_failure="b")
        getattr(story, decide)("ok", "ada")
        assert code_of(story.approve("ok", "bob")) == "APPROVAL_ENDED"
        story.cancel()
        assert code_of(story.approve("ok", "bob")) == "APPROVAL_ENDED"

    def test_a_vote_after_the_jobs_end_is_refused(self) -> None:
        story = asked()
        story.cancel()
        assert code_of(story.approve("ok")) == "APPROVAL_ENDED"

    def test_only_those_who_may_can_vote(self) -> None:
        story = asked()
        assert code_of(story.approve("ok", "mallory")) == "NOT_AN_APPROVER"
        assert code_of(story.reject("ok", "mallory")) == "NOT_AN_APPROVER"

    def test_a_group_that_a_key_names_may_too(self) -> None:
        story = Story(protocol(approval("ok", "finance"))).dispatched()
        assert code_of(story.approve("ok", "zoe", groups=("sales",))) == "NOT_AN_APPROVER"
        assert story.approve("ok", "zoe", groups=("sales", "finance")) == Applied()

    def test_four_eyes_are_not_those_of_who_asked(self) -> None:
        shape = protocol(approval("ok", "key:tests", "ada", four_eyes=True))
        story = Story(shape).dispatched()
        assert code_of(story.approve("ok", "key:tests")) == "NOT_AN_APPROVER"
        assert story.approve("ok", "ada") == Applied()

    @pytest.mark.parametrize("step_id", ["a", "nothing", "ok.1"])
    def test_what_was_not_asked_cannot_be_answered(self, step_id: str) -> None:
        assert code_of(asked().approve(step_id)) == "STEP_NOT_FOUND"

    def test_an_approval_to_come_cannot_be_given_yet(self) -> None:
        story = Story(protocol(task("a"), approval("ok"))).dispatched()
        assert code_of(story.approve("ok")) == "STEP_NOT_FOUND"

    def test_each_vote_is_audited(self) -> None:
        story = asked(quorum=2, on_failure="b")
        story.approve("ok", "ada", comment="yes")
        story.reject("ok", "bob", comment="no")
        votes = [event for event in story.books.events if event.type in ("STEP_APPROVED", "STEP_REJECTED")]
        assert [(e.type, e.data) for e in votes] == [
            ("STEP_APPROVED", {"by": "ada", "comment": "yes"}),
            ("STEP_REJECTED", {"by": "bob", "comment": "no"}),
        ]

    def test_a_new_run_asks_anew(self) -> None:
        story = asked(quorum=2)
        story.approve("ok", "ada")
        story.reject("ok", "bob")
        story.retry()
        assert story.status is JobStatus.WAITING_APPROVAL
        assert story.steps["ok"].votes == ()
        story.approve("ok", "bob")
        story.approve("ok", "ada")
        assert story.job.active == ("a",)


class TestTheJobsTime:
    def test_it_runs_out_while_people_are_asked(self) -> None:
        story = Story(protocol(approval("ok"), task("a"), timeout_ms=MINUTE)).dispatched()
        assert story.job.due_at == T0 + MINUTE
        story.tick_when_due()
        assert story.status is JobStatus.FAILED_FINAL
        assert story.job.error is not None
        assert story.job.error.code == "JOB_TIMEOUT"
        assert story.statuses("ok", "a") == ["FAILED_FINAL", "SKIPPED"]
        assert story.steps["ok"].attempt.outcome is AttemptOutcome.JOB_TIMEOUT
