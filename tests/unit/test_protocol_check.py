from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.adapters.expressions.expressions import CelTools
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.core.protocol.validation.protocol import Finding, check_protocol

TOOLS = CelTools()
Step = dict[str, Any]


def task(step_id: str, **more: Any) -> Step:
    return {"step_id": step_id, "step_type": "T", "service": "s", **more}


def decide(step_id: str, *choices: tuple[str, str], **more: Any) -> Step:
    found_reason = {"choices": [{"when": when, "then": then} for when, then in choices], **more}
    return {"step_id": step_id, "kind": "decision", "decision": found_reason}


def wait(step_id: str, signal: str | None = None, **more: Any) -> Step:
    found_reason = {"signal": signal} if signal else {"duration_ms": 1}
    return {"step_id": step_id, "kind": "wait", "wait": found_reason, **more}


OUTER = ("retry_safety", "on_success")


def call(step_id: str, **more: Any) -> Step:
    outer = {name: more.pop(name) for name in OUTER if name in more}
    return {"step_id": step_id, "kind": "external_call", "external_call": {"url": "https://x", **more}, **outer}


def notify(step_id: str, **more: Any) -> Step:
    return {"step_id": step_id, "kind": "notify", "notify": {"url": "https://x", "type": "t"}, **more}


def approval(step_id: str, **more: Any) -> Step:
    return {"step_id": step_id, "kind": "human_approval", "human_approval": {"approvers": ["anna"]}, **more}


def parallel(step_id: str, *branches: list[Step], **more: Any) -> Step:
    named = {f"b{number}": branch for number, branch in enumerate(branches)}
    return {"step_id": step_id, "kind": "parallel", "parallel": {"branches": named}, **more}


def mapped(step_id: str, *steps: Step, items: str = "input.pages", **more: Any) -> Step:
    return {"step_id": step_id, "kind": "map", "map": {"items": items, "steps": list(steps), **more}}


def check(*steps: Step, **protocol: Any) -> tuple[Finding, ...]:
    value = {"protocol_id": "p", "version": 1, "request_type": "P", "steps": list(steps), **protocol}
    return check_protocol(msgspec.convert(value, ProtocolDefinition), TOOLS)


def fatal(*steps: Step) -> list[tuple[str, str]]:
    return [(".".join(map(str, finding.path)), finding.reason) for finding in check(*steps) if finding.fatal]


def warnings(*steps: Step, **protocol: Any) -> list[tuple[str, str]]:
    found = check(*steps, **protocol)
    assert not any(finding.fatal for finding in found)
    return [(".".join(map(str, finding.path)), finding.reason) for finding in found]


def test_valid_protocol_with_all_step_kinds_has_no_findings() -> None:
    compensation = call("undo", url="https://x/${steps.first.result.id}")
    guard = {"url": "https://x/${job.id}", "done_when": "response.status == 200", "result": "response.body"}
    found = check(
        task("first", compensation=compensation, on_failure="tell", lease_ms=1000, guard={"a": 1}, timeout_ms=9)
        | {"retry_safety": "SAFE_TO_RETRY_WITH_GUARD"},
        decide("which", ("steps.first.result.n > 1 && input.big", "all"), otherwise="rest"),
        mapped(
            "all",
            call("page", url="https://x/${item.id}/${item_index}", result="response.body.id == item.id"),
            parallel("both", [task("left")], [decide("right", ("steps.page.result && item > 1", "SUCCEED"))]),
            mapped("words", task("word"), items="item.words"),
        )
        | {"on_success": "rest"},
        wait("rest", on_success="ask") | {"wait": {"until": "timestamp(input.at) + duration('1h')"}},
        approval("ask", timeout_ms=5, on_timeout="rest", on_failure="tell"),
        wait("signal", signal="done", timeout_ms=5),
        call("post", guard=guard, errors=[ERROR], headers={"k": "${secrets.K}"}, on_success="tell")
        | {"retry_safety": "SAFE_TO_RETRY_WITH_GUARD"},
        notify("tell"),
    )
    assert found == ()


ERROR = {"when": "response.status == 409 && steps.first.status == 'x'", "failure_class": "NON_RETRYABLE"}


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        ([task("a"), task("a")], "steps.1.step_id"),
        ([parallel("p", [task("a")], [task("a")])], "steps.0.parallel.branches.b1.0.step_id"),
        ([task("a"), mapped("m", task("m"))], "steps.1.map.steps.0.step_id"),
        ([task("a", compensation=task("b")), task("b")], "steps.1.step_id"),
        ([task("a", compensation=task("a"))], "steps.0.compensation.step_id"),
    ],
)
def test_duplicate_step_id_is_fatal(steps: list[Step], path: str) -> None:
    ((where, reason),) = fatal(*steps)
    assert where == path
    assert "is used twice" in reason


WAIT = {"step_id": "w", "kind": "wait"}


@pytest.mark.parametrize(
    ("step", "path", "reason"),
    [
        ({"step_id": "a", "service": "s"}, "steps.0", "a task needs a step_type"),
        ({"step_id": "a", "step_type": "T"}, "steps.0", "a task needs a service"),
        (WAIT, "steps.0.kind", "a wait needs a member wait"),
        ({"step_id": "a", "kind": "external_call"}, "steps.0.kind", "an external_call needs a member external_call"),
        (task("a", wait={"duration_ms": 1}), "steps.0.wait", "wait has no place in a task"),
        (wait("a") | {"notify": {"url": "x", "type": "t"}}, "steps.0.notify", "notify has no place in a wait"),
        (wait("a", service="s"), "steps.0.service", "service has no meaning for a wait"),
        (wait("a", payload_schema={"type": "object"}), "steps.0.payload_schema", "no meaning for a wait"),
        (
            decide("a", ("true", "SUCCEED")) | {"retry_policy": {"max_attempts": 2}},
            "steps.0.retry_policy",
            "no meaning",
        ),
        (wait("a", retry_policy={"max_attempts": 2}), "steps.0.retry_policy", "no meaning for a wait"),
        (approval("a", retry_policy={"max_attempts": 2}), "steps.0.retry_policy", "no meaning for a human_approval"),
        (parallel("a", [task("b")], retry_policy={"max_attempts": 2}), "steps.0.retry_policy", "no meaning"),
        (mapped("a", task("b")) | {"retry_policy": {"max_attempts": 2}}, "steps.0.retry_policy", "for a map"),
        (mapped("a", task("b")) | {"timeout_ms": 2}, "steps.0.timeout_ms", "no meaning for a map"),
        (call("a") | {"lease_ms": 5}, "steps.0.lease_ms", "no meaning for an external_call"),
        (notify("a", ack_timeout_ms=5), "steps.0.ack_timeout_ms", "no meaning for a notify"),
        (wait("a", retry_safety="NOT_SAFE_TO_RETRY"), "steps.0.retry_safety", "no meaning for a wait"),
        (call("a") | {"guard": {}, "retry_safety": "SAFE_TO_RETRY"}, "steps.0.guard", "no meaning"),
        (task("a", guard={}), "steps.0.guard", "a guard needs retry_safety: SAFE_TO_RETRY_WITH_GUARD"),
        (
            call("a", guard={"url": "x", "done_when": "true"}),
            "steps.0.external_call.guard",
            "a guard needs retry_safety",
        ),
        (call("a", retry_safety="SAFE_TO_RETRY_WITH_GUARD"), "steps.0.retry_safety", "needs external_call.guard"),
        (notify("a", retry_safety="SAFE_TO_RETRY_WITH_GUARD"), "steps.0.retry_safety", "a notify has no guard"),
        (
            task("a", retry_policy={"max_delay_ms": 1}),
            "steps.0.retry_policy.max_delay_ms",
            "is less than initial_delay_ms",
        ),
        (WAIT | {"wait": {}}, "steps.0.wait", "needs one of duration_ms, until and signal, and has none"),
        (WAIT | {"wait": {"duration_ms": 1, "signal": "s"}}, "steps.0.wait", "and has duration_ms and signal"),
        (wait("a", timeout_ms=5), "steps.0.timeout_ms", "no meaning for a wait with duration_ms"),
        (WAIT | {"wait": {"until": "2030-01-31T12:00:00"}}, "steps.0.wait.until", "needs its offset from UTC"),
        (WAIT | {"wait": {"until": "2030-01-31"}}, "steps.0.wait.until", "needs its offset from UTC"),
        (WAIT | {"wait": {"until": "tomorrow at noon"}}, "steps.0.wait.until", "mismatched input 'at'"),
        (wait("a", on_timeout="FAIL"), "steps.0.on_timeout", "a can't time out"),
        (wait("a", signal="s", on_timeout="FAIL"), "steps.0.on_timeout", "a can't time out without timeout_ms"),
        (approval("a", on_timeout="FAIL"), "steps.0.on_timeout", "a can't time out without timeout_ms"),
        (decide("a", ("true", "FAIL")) | {"on_timeout": "FAIL"}, "steps.0.on_timeout", "a can't time out"),
        (mapped("a", task("b")) | {"on_timeout": "FAIL"}, "steps.0.on_timeout", "a can't time out"),
        (decide("a", ("true", "FAIL")) | {"on_success": "SUCCEED"}, "steps.0.on_success", "its choices say"),
        (mapped("m", task("a", compensation=task("b"))), "steps.0.map.steps.0.compensation", "inside a map can't have"),
        (task("a", compensation=wait("b")), "steps.0.compensation.kind", "and not a wait"),
        (task("a", compensation=task("b", on_failure="FAIL")), "steps.0.compensation.on_failure", "no meaning"),
        (task("a", compensation=task("b", on_success="SUCCEED")), "steps.0.compensation.on_success", "no meaning"),
        (task("a", compensation=task("b", on_timeout="FAIL")), "steps.0.compensation.on_timeout", "no meaning"),
        (
            task("a", compensation=task("b", compensation=task("c"))),
            "steps.0.compensation.compensation",
            "a compensation has none itself",
        ),
    ],
)
def test_missing_or_meaningless_field_of_a_step_is_fatal(step: Step, path: str, reason: str) -> None:
    ((where, found_reason),) = fatal(step)
    assert where == path
    assert reason in found_reason


@pytest.mark.parametrize("until", ["2030-01-31T12:00:00Z", "2030-01-31T12:00:00.5+02:00", "input.at", "steps.a.result"])
def test_a_wait_takes_an_instant_or_an_expression(until: str) -> None:
    assert check(task("a"), WAIT | {"wait": {"until": until}}) == ()


@pytest.mark.parametrize(
    ("steps", "path", "reason"),
    [
        ([task("first", on_success="secnd"), task("second")], "steps.0.on_success", "did you mean second?"),
        ([task("a", on_failure="nowhere")], "steps.0.on_failure", "there is no step nowhere"),
        ([task("a", on_timeout="nowhere")], "steps.0.on_timeout", "there is no step nowhere"),
        (
            [decide("a", ("true", "b"), ("true", "c")), task("b")],
            "steps.0.decision.choices.1.then",
            "there is no step c",
        ),
        ([decide("a", ("true", "b"), otherwise="c"), task("b")], "steps.0.decision.otherwise", "there is no step c"),
        ([task("a"), mapped("m", task("b", on_success="a"))], "steps.1.map.steps.0.on_success", "a is outside"),
        ([task("a", on_failure="b"), mapped("m", task("b"))], "steps.0.on_failure", "b is inside m"),
        (
            [parallel("p", [task("a", on_failure="b")], [task("b")])],
            "steps.0.parallel.branches.b0.0.on_failure",
            "inside p",
        ),
        ([task("a", compensation=task("b")), task("c", on_failure="b")], "steps.1.on_failure", "the compensation of a"),
    ],
)
def test_target_outside_the_list_of_the_step_is_fatal(steps: list[Step], path: str, reason: str) -> None:
    ((where, found_reason),) = fatal(*steps)
    assert where == path
    assert reason in found_reason


@pytest.mark.parametrize(
    ("steps", "unreached"),
    [
        ([task("a", on_success="c"), task("b"), task("c")], "b"),
        ([task("a", on_success="SUCCEED"), task("b")], "b"),
        ([decide("a", ("true", "c")), task("b"), task("c")], "b"),
        ([task("a", on_success="SUCCEED"), task("b", on_success="c"), task("c", on_success="b")], "b"),
        ([mapped("m", task("a", on_success="SUCCEED"), task("b"))], "b"),
        ([parallel("p", [task("a")], [task("c", on_success="FAIL"), task("b")])], "b"),
    ],
)
def test_unreachable_step_is_fatal(steps: list[Step], unreached: str) -> None:
    assert f"nothing leads to the step {unreached}" in [reason for _, reason in fatal(*steps)]


def test_step_reached_by_failure_timeout_or_choice_is_reachable() -> None:
    assert (
        fatal(
            task("a", on_failure="b", on_timeout="c", on_success="SUCCEED"),
            task("b", on_success="SUCCEED"),
            decide("c", ("true", "d"), otherwise="e"),
            task("d", on_success="FAIL"),
            task("e"),
        )
        == []
    )


def test_loop_without_an_exit_is_fatal() -> None:
    circle = [task("a", on_failure="b"), wait("b", on_success="a")]
    assert fatal(*circle) == [("steps.0.step_id", "there is no way out of a, b: no path from there ends")]
    assert fatal(task("x", on_failure="a", on_success="SUCCEED"), *circle) == [
        ("steps.1.step_id", "there is no way out of a, b: no path from there ends")
    ]
    assert fatal(task("a", on_failure="b", on_timeout="FAIL"), wait("b", on_success="a")) == []
    assert fatal(task("a"), decide("b", ("true", "a"), otherwise="SUCCEED")) == []
    assert fatal(approval("a", on_success="a")) == []
    assert fatal(WAIT | {"wait": {"until": "input.at"}, "on_success": "w"}) == []
    forever = wait("a", signal="s", on_success="a")
    assert [reason for _, reason in fatal(forever)] == ["there is no way out of a: no path from there ends"]


def test_flow_that_can_only_fail_is_a_warning() -> None:
    assert warnings(task("a"), wait("b", on_success="a")) == [
        ("steps.0", "nothing leads to SUCCEED: this can only fail")
    ]


EXPRESSIONS: list[tuple[str, str]] = [
    ("inptu.x == 1", "there is nothing called inptu here; did you mean input?"),
    ("nothing_like_it == 1", "there is nothing called nothing_like_it here"),
    ("steps.frist.result == 1", "there is no step frist; did you mean first?"),
    ("steps['second-one'].result == 1", "there is no step second-one"),
    ("steps.inner.result == 1", "inner is inside all and can't be read from outside"),
    ("steps.undo.result == 1", "undo is the compensation of first, which can't be read"),
    ("size(steps) == 1", "steps must be followed by the id of a step"),
    ("item == 1", "item is only there inside a map"),
    ("item_index == 1", "item_index is only there inside a map"),
    ("response.status == 1", "response is only there in result, errors and guard of an external_call"),
    ("secrets.KEY == ''", "a secret can only stand by itself in a template"),
    ("input.x ==", "mismatched input"),
    ("input.x.nope()", "undeclared reference to 'nope'"),
]


@pytest.mark.parametrize(("expression", "reason"), EXPRESSIONS)
def test_unknown_name_in_an_expression_is_fatal(expression: str, reason: str) -> None:
    first, around = task("first", compensation=task("undo")), mapped("all", task("inner"))
    ((where, found_reason),) = fatal(first, around, decide("d", ("true", "FAIL"), (expression, "SUCCEED")))
    assert where == "steps.2.decision.choices.1.when"
    assert reason in found_reason
    ((where, found_reason),) = fatal(
        first, around, notify("n") | {"notify": notice(data=[{"x": f"a ${{{expression}}}"}])}
    )
    assert where == "steps.2.notify.data.0.x"
    assert reason in found_reason


def notice(**more: Any) -> Step:
    return {"url": "https://x", "type": "t", **more}


WRONG = "${nope.x}"


@pytest.mark.parametrize(
    ("step", "path"),
    [
        (WAIT | {"wait": {"until": "nope"}}, "steps.0.wait.until"),
        (mapped("m", task("a"), items="nope"), "steps.0.map.items"),
        (mapped("m", task("a"), items="item"), "steps.0.map.items"),
        (call("c", url=WRONG), "steps.0.external_call.url"),
        (call("c", headers={"a": "x", "b": WRONG}), "steps.0.external_call.headers.b"),
        (call("c", body={"a": [1, {"b": WRONG}]}), "steps.0.external_call.body.a.1.b"),
        (call("c", body="${response.status}"), "steps.0.external_call.body"),
        (call("c", body="${unclosed"), "steps.0.external_call.body"),
        (call("c", result="nope"), "steps.0.external_call.result"),
        (call("c", errors=[{**ERROR, "when": "nope"}]), "steps.0.external_call.errors.0.when"),
        (notify("n") | {"notify": notice(url=WRONG)}, "steps.0.notify.url"),
        (approval("a") | {"human_approval": {"approvers": ["b"], "prompt": WRONG}}, "steps.0.human_approval.prompt"),
        (task("a", compensation=call("c", url=WRONG)), "steps.0.compensation.external_call.url"),
        (parallel("p", [call("c", url=WRONG)]), "steps.0.parallel.branches.b0.0.external_call.url"),
    ],
)
def test_every_expression_and_template_is_checked(step: Step, path: str) -> None:
    assert [where for where, _ in fatal(step)] == [path]


@pytest.mark.parametrize("member", ["url", "done_when", "result", "headers", "body"])
def test_templates_of_a_guard_are_checked(member: str) -> None:
    guard = {"url": "x", "done_when": "response.status == 200", member: {"a": WRONG} if member == "headers" else WRONG}
    ((where, _),) = fatal(call("c", guard=guard, retry_safety="SAFE_TO_RETRY_WITH_GUARD"))
    assert where.startswith(f"steps.0.external_call.guard.{member}")


@pytest.mark.parametrize("key", ["${input.x}", "id-${ job.id }", "${unclosed", "${}"])
@pytest.mark.parametrize(
    ("step", "path"),
    [
        (lambda key: call("c", body={"a": [{key: 1}]}), "steps.0.external_call.body.a.0"),
        (lambda key: call("c", body={"a": {key: {"b": "${input.y}"}}}), "steps.0.external_call.body.a"),
        (lambda key: notify("n") | {"notify": notice(data={key: 1})}, "steps.0.notify.data"),
        (
            lambda key: call(
                "c",
                retry_safety="SAFE_TO_RETRY_WITH_GUARD",
                guard={"url": "x", "done_when": "response.status == 200", "method": "POST", "body": {key: 1}},
            ),
            "steps.0.external_call.guard.body",
        ),
    ],
)
def test_template_in_a_key_is_worth_a_warning(step: Callable[[str], Step], path: str, key: str) -> None:
    ((where, reason),) = warnings(step(key))
    assert where == f"{path}.{key}"
    assert "keys are not templates" in reason
    assert "$${" in reason


def test_templates_in_keys_count_as_expressions() -> None:
    ((where, reason),) = fatal(call("c", body={f"${{input.x{number}}}": 1 for number in range(1001)}))
    assert where == "steps.0.external_call.body.${input.x1000}"
    assert "1,000 expressions" in reason


def test_template_in_the_name_of_a_header_is_fatal() -> None:
    ((where, reason),) = fatal(call("c", headers={"x-${input.x}": "1"}))
    assert where == "steps.0.external_call.headers.x-${input.x}"
    assert "names of headers are not templates" in reason


@pytest.mark.parametrize("key", ["$${input.x}", "$$${input.x}", "$x", "{x}", "${secrets.NAME}"])
def test_key_without_an_expression_has_no_finding(key: str) -> None:
    assert warnings(call("c", body={key: 1})) == []


def test_step_can_read_only_its_own_list_and_the_enclosing_ones() -> None:
    reads_left = decide("right", ("steps.left.result == 1", "SUCCEED"), otherwise="SUCCEED")
    ((where, reason),) = fatal(task("a"), parallel("p", [task("left")], [reads_left]))
    assert where == "steps.1.parallel.branches.b1.0.decision.choices.0.when"
    assert "left is inside p" in reason
    sees = decide("d", ("steps.a.result == steps.p.result && steps.b.result == item", "SUCCEED"), otherwise="SUCCEED")
    assert fatal(task("a"), mapped("p", task("b"), sees)) == []


def nested(*kinds: str) -> Step:
    """Return nested containers, the outermost kind first, with one running step at a time."""
    inner = task("leaf")
    for depth, kind in reversed(list(enumerate(kinds))):
        name = f"c{depth}"
        inner = mapped(name, inner, max_parallel=1) if kind == "map" else parallel(name, [inner])
    return inner


def test_nesting_is_limited_to_four_containers_and_two_maps() -> None:
    assert fatal(nested("map", "parallel", "parallel", "map")) == []
    assert fatal(nested(*["parallel"] * 4)) == []
    assert [reason for _, reason in fatal(nested(*["parallel"] * 5))] == ["more than 4 containers inside each other"]
    ((where, reason),) = fatal(nested("map", "map", "map"))
    assert where == "steps.0.map.steps.0.map.steps.0.kind"
    assert reason == "more than 2 maps inside each other"


def test_more_parallel_steps_than_a_job_may_have_are_fatal() -> None:
    wide = [[task(f"t{number}")] for number in range(64)]
    assert fatal(parallel("p", *wide)) == []
    ((where, reason),) = fatal(task("a"), parallel("p", *wide, [task("one-more")]))
    assert where == "steps.1"
    assert reason == "p may have 65 steps running at once; at most 64"
    assert fatal(mapped("m", mapped("n", task("a"), max_parallel=8), max_parallel=8)) == []
    assert fatal(mapped("m", task("b"), mapped("n", task("a"), max_parallel=9), max_parallel=8))[0][0] == "steps.0"
    assert fatal(mapped("m", parallel("p", [task("a")], [task("b")], [task("c")]), max_parallel=22))[0][0] == "steps.0"


def test_more_than_five_hundred_steps_are_fatal() -> None:
    def of(count: int) -> list[Step]:
        long = [[task(f"s{branch}-{number}") for number in range(49)] for branch in range(10)]
        return [parallel("p", *long), *(task(f"t{number}") for number in range(count - 491))]

    assert fatal(*of(500)) == []
    assert fatal(*of(501)) == [("steps", "has 501 steps in all; at most 500")]


def test_branch_that_continues_into_the_next_is_a_warning() -> None:
    choose = decide("d", ("input.x", "a"), otherwise="b")
    ((where, reason),) = warnings(choose, task("a"), task("b"))
    assert where == "steps.2"
    assert reason == "b is a branch of d and also follows a; an on_success at a would say what is meant"
    assert warnings(choose, task("a", on_success="b"), task("b")) == []
    assert warnings(choose, task("a", on_success="SUCCEED"), task("b")) == []
    ((where, reason),) = warnings(task("a", on_failure="c"), task("b"), task("c"))
    assert where == "steps.2"
    assert "c is a branch of a and also follows b" in reason
    assert warnings(task("a", on_failure="c"), task("b", on_success="SUCCEED"), task("c")) == []
    assert warnings(task("a", on_success="c", on_failure="b"), task("b"), task("c")) == []


def test_attempts_that_can_never_be_made_are_a_warning() -> None:
    unsafe = task("a", retry_safety="NOT_SAFE_TO_RETRY", retry_policy={"max_attempts": 3})
    ((where, reason),) = warnings(unsafe)
    assert where == "steps.0.retry_policy.max_attempts"
    assert "only used for failed hand-overs" in reason
    assert warnings(unsafe | {"retry_policy": {"max_attempts": 1}}) == []


@pytest.mark.parametrize("step", [wait("w", signal="s"), approval("w")])
def test_wait_without_a_timeout_is_a_warning(step: Step) -> None:
    ((where, reason),) = warnings(step)
    assert where == "steps.0"
    assert "nothing ends the job if it never comes" in reason
    assert warnings(step | {"timeout_ms": 5}) == []
    assert warnings(step, policies={"timeout_ms": 5}) == []


def test_quorum_larger_than_the_list_of_approvers_is_accepted() -> None:
    many = approval("a", timeout_ms=5) | {"human_approval": {"approvers": ["everybody"], "quorum": 20}}
    assert check(many) == ()


names = st.sampled_from("abcdef")
targets = names | st.sampled_from(["SUCCEED", "FAIL"])
leads = st.fixed_dictionaries({}, optional={"on_success": targets, "on_failure": targets, "on_timeout": targets})


def any_steps() -> st.SearchStrategy[list[Step]]:
    leaf = st.one_of(
        st.builds(lambda name, more: task(name) | more, names, leads),
        st.builds(lambda name, more: wait(name) | more, names, leads),
        st.builds(lambda name, to: decide(name, ("input.x", to)), names, targets),
        st.builds(lambda name, to: call(name, body="${steps." + to + ".result}"), names, names),
    )

    def around(inner: st.SearchStrategy[list[Step]]) -> st.SearchStrategy[list[Step]]:
        step = (
            leaf
            | st.builds(lambda name, steps: mapped(name, *steps), names, inner)
            | st.builds(lambda name, left, right: parallel(name, left, right), names, inner, inner)
            | st.builds(lambda name, handler: task(name, compensation=handler), names, leaf)
        )
        return st.lists(step, min_size=1, max_size=5)

    return st.recursive(st.lists(leaf, min_size=1, max_size=5), around, max_leaves=8)


def is_there(value: Any, path: tuple[str | int, ...]) -> bool:
    """Return True if a path leads to a value, or to a member that its object lacks."""
    for key in path:
        if isinstance(value, dict) and key not in value:
            return key == path[-1]
        value = value[key]
    return True


@given(any_steps())
def test_every_finding_points_into_the_document(steps: list[Step]) -> None:
    for finding in check(*steps):
        assert is_there({"steps": steps}, finding.path)
        assert "\n" not in finding.reason
