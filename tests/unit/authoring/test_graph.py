"""Diagrams of protocols: what they show, and that renderers accept them."""

import re
import xml.etree.ElementTree as ET

import pytest

from lucius.authoring.graph import Edge, Flow, graph_of
from lucius.authoring.mermaid import mermaid
from lucius.authoring.svg import svg, wrapped
from lucius.core.protocol.definition import ProtocolDefinition
from tests.unit.authoring.support import approval, call, decision, protocol, task, wait

NASTY = '"quoted" <b>&amp; `code` #1; {x} | %% end é 日本'


def edges(made: ProtocolDefinition) -> list[tuple[str, str, str, str]]:
    return [(e.source, e.target, e.kind, e.label) for e in graph_of(made).flow.edges]


def test_steps_are_linked_in_sequence_to_the_end() -> None:
    assert edges(protocol(task("a"), task("b"))) == [
        ("START", "a", "flow", ""),
        ("a", "b", "flow", ""),
        ("b", "SUCCEED", "flow", ""),
    ]


def test_only_failure_paths_that_the_protocol_names_are_drawn() -> None:
    made = protocol(task("a", on_failure="c"), task("b", on_timeout="c"), task("c"))
    assert [e for e in edges(made) if e[2] == "failure"] == [
        ("a", "c", "failure", "failure or timeout"),
        ("b", "c", "failure", "timeout"),
    ]


def test_rejection_and_approval_timeout_have_their_own_edges() -> None:
    made = protocol(approval("a", "x", timeout_ms=7_200_000, on_failure="b", on_timeout="c"), task("b"), task("c"))
    assert [e[1:] for e in edges(made) if e[2] == "failure"] == [
        ("b", "failure", "rejected"),
        ("c", "failure", "timeout after 2 h"),
    ]


def test_a_wait_for_a_signal_can_only_time_out() -> None:
    made = protocol(wait("w", signal="go", timeout_ms=60_000, on_failure="b"), task("b"))
    assert [e[1:] for e in edges(made) if e[2] == "failure"] == [("b", "failure", "timeout after 1 min")]


def test_choices_carry_their_expressions() -> None:
    made = protocol(decision("d", "FAIL", a="input.x > 1"), task("a"))
    assert ("d", "a", "choice", "input.x > 1") in edges(made)
    assert ("d", "FAIL", "choice", "otherwise") in edges(made)


def test_step_with_a_visit_limit_shows_it() -> None:
    made = protocol(task("a", max_visits=4), wait("w", duration_ms=1000, on_success="a"))
    assert "at most 4 visits" in graph_of(made).flow.nodes[1].notes


def test_containers_contain_flows_and_show_only_early_ends() -> None:
    inner = [decision("d", "b", SUCCEED="item.done"), task("b")]
    mapped = {"step_id": "m", "kind": "map", "map": {"items": "input.list", "max_parallel": 3, "steps": inner}}
    branches = {"one": [task("x")], "two": [task("y")]}
    both = {"step_id": "p", "kind": "parallel", "parallel": {"branches": branches}}
    _, m, p, _ = graph_of(protocol(mapped, both)).flow.nodes
    assert m.notes == ("for each of input.list", "max 3 at once, the first failure ends it")
    assert [node.id for node in m.inner[0].nodes] == ["d", "b", "SUCCEED"]
    assert [flow.name for flow in p.inner] == ["one", "two"]
    assert p.inner[0] == Flow("one", p.inner[0].nodes, ())


def test_handler_is_drawn_beside_its_step() -> None:
    made = protocol(task("a", compensation=task("undo")))
    node = graph_of(made).flow.nodes[1]
    assert node.handler is not None
    assert node.handler.id == "undo"
    assert "undone by" in svg(graph_of(made))
    assert 's_a -. "undone by" .-o s_undo' in mermaid(graph_of(made))


SAFE = r"(?:[A-Za-z0-9 .,:/()_+*=?!'-]|#\d+;|<br/>)*"
LINES = [
    re.compile(line.replace("LABEL", SAFE))
    for line in (
        r"%%[^{}]*",
        r"flowchart TD",
        r"end",
        r"direction TB",
        r'subgraph \w+\["LABEL"\]',
        r'\w+(?:\["LABEL"\]|\{"LABEL"\}|\(\["LABEL"\]\)|\[\["LABEL"\]\]|>"LABEL"\]|\[/"LABEL"\\\]|\(\("LABEL"\)\))',
        r'\w+\(\(\("LABEL"\)\)\)',
        r'\w+ (?:-->|-\.->)(?:\|"LABEL"\|)? \w+',
        r'\w+ -\. "undone by" \.-o \w+',
    )
]


def everything() -> ProtocolDefinition:
    """Return a protocol with every kind of step, with names and texts that are syntax in Mermaid, Markdown or XML."""
    inner = [task("i-1", on_failure="i-2"), approval("i-2", NASTY, on_failure="SUCCEED"), task("subgraph")]
    return protocol(
        task("end", on_failure="o"),
        decision("x-y", "FAIL", o=f"input.a == {NASTY!r}", style="input.b"),
        {"step_id": "o", "kind": "map", "map": {"items": NASTY, "steps": inner}, "on_failure": "end"},
        {
            "step_id": "style",
            "kind": "parallel",
            "parallel": {
                "branches": {"a-b": [call("c1", f"https://h.example/{NASTY}")], "a_b": [wait("w", signal="go")]}
            },
        },
        {"step_id": "n", "kind": "notify", "notify": {"url": "nowhere at all", "type": "t"}, "on_failure": "n"},
        wait("until", until="input.when"),
        call("z", "https://${input.host}/x", compensation=task("undo-z")),
        title=NASTY,
        policies={"timeout_ms": 1000},
    )


@pytest.mark.parametrize("line", mermaid(graph_of(everything())).splitlines())
def test_each_mermaid_line_matches_a_known_form_with_escaped_labels(line: str) -> None:
    assert any(form.fullmatch(line.strip()) for form in LINES), line


def test_mermaid_ids_are_unique_and_edges_use_known_ids() -> None:
    text = mermaid(graph_of(everything()))
    made = re.findall(r"^ *(?:subgraph )?(\w+)[\[({>]", text, re.MULTILINE)
    assert len(made) == len(set(made))
    arrows = re.findall(r"^ *(\w+) (?:-->|-\.->)(?:\|.*\|)? (\w+)$", text, re.MULTILINE)
    assert {end for arrow in arrows for end in arrow} <= set(made)


def test_svg_is_valid_xml_for_any_text() -> None:
    root = ET.fromstring(svg(graph_of(everything())))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert f"P version 1: {NASTY}" in texts
    assert {"end", "x-y", "i-1", "c1", "undo-z"} <= set(texts)


def test_an_edge_of_svg_keeps_its_whole_expression_as_a_tooltip() -> None:
    long = " && ".join(f"input.member_{n} == {n}" for n in range(30))
    root = ET.fromstring(svg(graph_of(protocol(decision("d", "FAIL", a=long), task("a")))))
    assert long in [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]


def test_a_long_label_is_wrapped_and_cut() -> None:
    assert wrapped("one two three", 7, 3) == ("one two", "three")
    assert wrapped("", 7, 3) == ()
    assert wrapped("a b c d", 1, 2) == ("a", "…")


def test_a_protocol_of_200_steps_is_drawn() -> None:
    made = protocol(*(task(f"s{n}", on_failure=f"s{(n + 50) % 200}") for n in range(200)))
    assert svg(graph_of(made)).count("task for x") >= 200
    assert edges(made)[1] == ("s0", "s1", "flow", "")
    assert Edge("s0", "s50", "failure", "failure or timeout") in graph_of(made).flow.edges
