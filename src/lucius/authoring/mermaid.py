"""A graph as Mermaid text, for Markdown pages that draw it themselves."""

import re
from collections.abc import Iterator

from lucius.authoring.formatting import shortened
from lucius.authoring.graph import Edge, Flow, Graph, Node

MAX_LABEL_CHARS = 80
_SHAPES = {
    "task": ('["', '"]'),
    "decision": ('{"', '"}'),
    "wait": ('(["', '"])'),
    "external_call": ('[["', '"]]'),
    "notify": ('>"', '"]'),
    "human_approval": ('[/"', '"\\]'),
    "start": ('(("', '"))'),
    "succeed": ('((("', '")))'),
    "fail": ('((("', '")))'),
}
_PLAIN = re.compile(r"[^A-Za-z0-9 .,:/()_+*=?!'-]")


def mermaid(graph: Graph) -> str:
    lines = [f"%% {_comment(graph.title)}", *(f"%% {_comment(note)}" for note in graph.notes), "flowchart TD"]
    lines += [f"    {line}" for line in _flow(graph.flow, "T")]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    """Replace braces, which in a comment can be taken for a directive."""
    return shortened(text, 200).replace("{", "(").replace("}", ")")


def _flow(flow: Flow, scope: str) -> Iterator[str]:
    for node in flow.nodes:
        yield from _node(node, scope)
    for edge in flow.edges:
        yield _edge(edge, scope)


def _node(node: Node, scope: str) -> Iterator[str]:
    if node.inner:
        yield f'subgraph {_id(node.id, scope)}["{_title(node)}"]'
        yield "    direction TB"
        for flow in node.inner:
            yield from (f"    {line}" for line in _inner(flow, node))
        yield "end"
    else:
        before, after = _SHAPES[node.kind]
        yield f"{_id(node.id, scope)}{before}{_label(node)}{after}"
    if node.handler is not None:
        yield from _node(node.handler, scope)
        yield f'{_id(node.id, scope)} -. "undone by" .-o {_id(node.handler.id, scope)}'


def _inner(flow: Flow, container: Node) -> Iterator[str]:
    scope = _plain_id(f"{container.id} {flow.name}" if flow.name else container.id)
    if not flow.name:
        yield from _flow(flow, scope)
        return
    yield f'subgraph b_{scope}["{_text(flow.name)}"]'
    yield "    direction TB"
    yield from (f"    {line}" for line in _flow(flow, scope))
    yield "end"


def _edge(edge: Edge, scope: str) -> str:
    arrow = "-.->" if edge.kind == "failure" else "-->"
    label = f'|"{_text(shortened(edge.label, MAX_LABEL_CHARS))}"|' if edge.label else ""
    return f"{_id(edge.source, scope)} {arrow}{label} {_id(edge.target, scope)}"


def _id(name: str, scope: str) -> str:
    """Return a unique id; its prefix keeps it distinct from Mermaid's reserved words."""
    return f"e_{scope}_{name}" if name.isupper() else f"s_{_plain_id(name)}"


def _plain_id(name: str) -> str:
    """Replace `-` and space by capital letters, which step ids do not have."""
    return name.replace("-", "D").replace(" ", "B")


def _label(node: Node) -> str:
    lines = (shortened(line, MAX_LABEL_CHARS) for line in (node.title, *node.notes))
    return "<br/>".join(_text(line) for line in lines) or " "


def _title(node: Node) -> str:
    """Return the title of a subgraph in a single line: Mermaid draws the content over a second one."""
    return _text(shortened(f"{node.title}: {', '.join(node.notes)}", 2 * MAX_LABEL_CHARS))


def _text(text: str) -> str:
    """Replace every character that could mean something to Mermaid, Markdown or HTML by its number."""
    return _PLAIN.sub(lambda found: f"#{ord(found[0])};", text)
