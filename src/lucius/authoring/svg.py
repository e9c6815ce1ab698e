"""A graph as an SVG picture, with its own background, in light and dark colours."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from msgspec import Struct

from lucius.authoring.formatting import shortened
from lucius.authoring.graph import Edge, Flow, Graph, Node
from lucius.authoring.layout import Arrow, ArrowPath, Box, Layout, lay_out

TITLE_PX, NOTE_PX, LINE_PX, NOTE_LINE_PX = 13.0, 11.0, 17.0, 14.0
PAD_PX, MARGIN_PX, HANDLER_GAP_PX = 12.0, 22.0, 76.0
MAX_NOTE_CHARS, MAX_LABEL_CHARS, MAX_LABEL_LINES = 46, 44, 3
_NARROW, _WIDE = frozenset("ijlftrI.,:;'|!()[]{}-/\\ `"), frozenset("mwMW@%")

_RULES = """
  .paper, .behind {{ fill: {paper}; }} .inner, .behind.nested {{ fill: {inner}; }}
  text {{ fill: {ink}; }} .note, .label, .foot {{ fill: {soft}; }}
  .box {{ fill: {box}; stroke: {edge}; }} .inner, .branch {{ stroke: {edge}; }}
  .external_call, .notify {{ fill: {call}; }} .human_approval, .wait {{ fill: {ask}; }}
  .decision {{ fill: {choose}; }} .succeed {{ fill: none; stroke: {good}; }} .fail {{ fill: none; stroke: {bad}; }}
  .arrow, .undo {{ stroke: {line}; }} .tip, .start {{ fill: {line}; }}
  .arrow.failure {{ stroke: {bad}; }} .tip.failure, .label.failure {{ fill: {bad}; }}"""
_LIGHT = {
    "paper": "#ffffff", "inner": "#f8fafc", "ink": "#1f2933", "soft": "#52606d", "line": "#7b8794",
    "box": "#eef1f5", "edge": "#9aa5b1", "call": "#e0ecfa", "ask": "#fdf1cf", "choose": "#ece2fa",
    "good": "#1f8a4c", "bad": "#c0392b",
}  # fmt: skip
_DARK = {
    "paper": "#14181d", "inner": "#1a1f26", "ink": "#e6eaee", "soft": "#a9b4c0", "line": "#8592a0",
    "box": "#262d36", "edge": "#566270", "call": "#1f3147", "ask": "#3f3620", "choose": "#362c4a",
    "good": "#4cc38a", "bad": "#f07167",
}  # fmt: skip
STYLE = f"""
  text {{ font-family: Helvetica, Arial, "Liberation Sans", sans-serif; text-anchor: middle; }}
  .title {{ font-size: 13px; font-weight: 600; }} .note, .label, .foot {{ font-size: 11px; }}
  .head {{ font-size: 15px; font-weight: 600; }} .head, .foot {{ text-anchor: start; }}
  .arrow, .undo {{ fill: none; stroke-width: 1.4; }} .arrow.failure {{ stroke-dasharray: 6 4; }}
  .undo {{ stroke-dasharray: 1.5 4; stroke-linecap: round; }} .branch {{ fill: none; stroke-dasharray: 2 3; }}
  .succeed, .fail {{ stroke-width: 2; }}{_RULES.format(**_LIGHT)}
  @media (prefers-color-scheme: dark) {{{_RULES.format(**_DARK)}
  }}
"""


class _SizedNode(Struct, frozen=True):
    """A node with its layout: the size of its box, the flows inside, and its handler."""

    node: Node
    width: float
    height: float
    head: float = 0.0
    flows: "tuple[_SizedFlow, ...]" = ()
    handler: "_SizedNode | None" = None

    @property
    def box(self) -> Box:
        beside = HANDLER_GAP_PX + self.handler.width if self.handler else 0.0
        height = max(self.height, self.handler.height if self.handler else 0.0)
        return Box(self.width / 2, self.width / 2 + beside, height)


class _SizedFlow(Struct, frozen=True):
    flow: Flow
    nodes: tuple[_SizedNode, ...]
    labels: tuple[tuple[str, ...], ...]
    layout: Layout
    head: float

    @property
    def width(self) -> float:
        return max(self.layout.width, measure(self.flow.name, NOTE_PX) + PAD_PX)


def svg(graph: Graph) -> str:
    sized_flow = _size_flow(graph.flow)
    head = 2 * MARGIN_PX + 4
    foot = NOTE_LINE_PX * len(graph.notes) + 8
    widest = max([measure(graph.title, 15.0), *(measure(note, NOTE_PX) for note in graph.notes), sized_flow.width])
    width, height = widest + 2 * MARGIN_PX, head + sized_flow.layout.height + foot + MARGIN_PX
    body = [
        f'<rect class="paper" width="{width:.0f}" height="{height:.0f}" rx="8"/>',
        f'<text class="head" x="{MARGIN_PX}" y="{MARGIN_PX + 8}">{escape(graph.title)}</text>',
        *_flow(sized_flow, (width - sized_flow.width) / 2, head, nested=False),
    ]
    for number, note in enumerate(graph.notes):
        y = head + sized_flow.layout.height + 20 + number * NOTE_LINE_PX
        body.append(f'<text class="foot" x="{MARGIN_PX}" y="{y:.1f}">{escape(note)}</text>')
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    lines = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(graph.title)}">\n'
        f"<style>{STYLE}</style>\n{lines}\n</svg>\n"
    )


# Sizes


def measure(text: str, size: float) -> float:
    """Estimate the width of a text, rather too large than too small: fonts differ."""
    return size * sum(_share(char) for char in text) * 1.06


def _share(char: str) -> float:
    if char in _NARROW:
        return 0.33
    if char in _WIDE:
        return 0.9
    if ord(char) > 0x2E7F:
        return 1.05
    return 0.7 if char.isupper() else 0.57


def _size_flow(flow: Flow) -> _SizedFlow:
    nodes = tuple(_size_node(node) for node in flow.nodes)
    places = {node.id: index for index, node in enumerate(flow.nodes)}
    labels = tuple(wrapped(edge.label, MAX_LABEL_CHARS, MAX_LABEL_LINES) for edge in flow.edges)
    arrows = [
        Arrow(
            places[edge.source],
            places[edge.target],
            _label_size(lines),
            8.0 if edge.kind == "flow" else 1.0,
            "failure" if edge.kind == "failure" else "",
        )
        for edge, lines in zip(flow.edges, labels, strict=True)
    ]
    return _SizedFlow(flow, nodes, labels, lay_out([node.box for node in nodes], arrows), LINE_PX if flow.name else 0.0)


def _label_size(lines: Sequence[str]) -> tuple[float, float] | None:
    if not lines:
        return None
    return max(measure(line, NOTE_PX) for line in lines) + 8, len(lines) * NOTE_LINE_PX + 2


def wrapped(text: str, width: int, lines: int) -> tuple[str, ...]:
    """Break a text into lines of about that width, between words or after operators; the rest is left off."""
    made: list[str] = []
    for word in re.findall(r"\S+\s*", text):
        if made and len(made[-1]) + len(word.rstrip()) <= width:
            made[-1] += word
        else:
            made.append(word)
    cut = [shortened(line, width) for line in made[:lines]]
    if len(made) > lines:
        cut[-1] = shortened(f"{cut[-1]} …", width)
    return tuple(cut)


def _size_node(node: Node) -> _SizedNode:
    match node.kind:
        case "start":
            return _SizedNode(node, 14.0, 14.0)
        case "succeed" | "fail":
            return _SizedNode(node, measure(node.title, TITLE_PX) + 2 * PAD_PX, 28.0)
        case _:
            return _size_container(node) if node.inner else _size_step(node)


def _size_step(node: Node) -> _SizedNode:
    notes = [measure(shortened(note, MAX_NOTE_CHARS), NOTE_PX) for note in node.notes]
    slant = 2 * PAD_PX if node.kind in ("decision", "notify", "human_approval", "external_call") else PAD_PX
    width = max([96.0, measure(node.title, TITLE_PX) * 1.06, *notes]) + PAD_PX + slant
    height = 2 * 9.0 + LINE_PX + NOTE_LINE_PX * len(notes)
    return _SizedNode(node, width, height, handler=_size_node(node.handler) if node.handler else None)


def _size_container(node: Node) -> _SizedNode:
    flows = tuple(_size_flow(flow) for flow in node.inner)
    head = 16.0 + LINE_PX + NOTE_LINE_PX * len(node.notes)
    texts = [
        measure(node.title, TITLE_PX) * 1.06,
        *(measure(shortened(n, MAX_NOTE_CHARS), NOTE_PX) for n in node.notes),
    ]
    inside = sum(flow.width + 2 * PAD_PX for flow in flows) + PAD_PX * (len(flows) - 1)
    width = max(inside, *texts) + 2 * PAD_PX
    tallest = max(flow.layout.height + flow.head for flow in flows) + (2 * PAD_PX if flows[0].flow.name else PAD_PX)
    return _SizedNode(
        node, width, head + tallest + PAD_PX, head, flows, _size_node(node.handler) if node.handler else None
    )


# Drawing


def _flow(sized_flow: _SizedFlow, x: float, y: float, *, nested: bool) -> Iterable[str]:
    x += (sized_flow.width - sized_flow.layout.width) / 2
    for edge, route in zip(sized_flow.flow.edges, sized_flow.layout.routes, strict=True):
        yield from _arrow(edge, route, x, y)
    for sized, (at_x, at_y) in zip(sized_flow.nodes, sized_flow.layout.nodes, strict=True):
        yield from _node(sized, x + at_x, y + at_y)
    for edge, route, lines in zip(sized_flow.flow.edges, sized_flow.layout.routes, sized_flow.labels, strict=True):
        if route.label_at is not None:
            yield from _label(edge, lines, x + route.label_at[0], y + route.label_at[1], nested)


def _arrow(edge: Edge, route: ArrowPath, x: float, y: float) -> Iterable[str]:
    points = [(x + px, y + py) for px, py in route.points]
    end_x, end_y = points[-1]
    style = "failure" if edge.kind == "failure" else ""
    if not route.joins:
        points[-1] = (end_x, end_y - 6)
    path = _cornered(points) if route.straight else _curved(points)
    yield f'<path class="arrow {style}" d="{path}"/>'
    if not route.joins:
        yield f'<path class="tip {style}" d="M{end_x:.1f},{end_y:.1f} l-4.5,-8 h9 z"/>'


def _curved(points: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = points
    path = f"M{x:.1f},{y:.1f}"
    for next_x, next_y in rest:
        if abs(next_x - x) < 0.05:
            path += f" L{next_x:.1f},{next_y:.1f}"
        else:
            middle = (y + next_y) / 2
            path += f" C{x:.1f},{middle:.1f} {next_x:.1f},{middle:.1f} {next_x:.1f},{next_y:.1f}"
        x, y = next_x, next_y
    return path


def _cornered(points: Sequence[tuple[float, float]]) -> str:
    """Return a path of straight lines with rounded corners."""
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        start, end = _towards(corner, before), _towards(corner, after)
        path += f" L{start[0]:.1f},{start[1]:.1f} Q{corner[0]:.1f},{corner[1]:.1f} {end[0]:.1f},{end[1]:.1f}"
    return f"{path} L{points[-1][0]:.1f},{points[-1][1]:.1f}"


def _towards(corner: tuple[float, float], other: tuple[float, float], radius: float = 6.0) -> tuple[float, float]:
    across, down = other[0] - corner[0], other[1] - corner[1]
    length = max(abs(across), abs(down))
    share = min(radius, length / 2) / length if length else 0.0
    return corner[0] + across * share, corner[1] + down * share


def _label(edge: Edge, lines: Sequence[str], x: float, y: float, nested: bool) -> Iterable[str]:
    size = _label_size(lines)
    assert size is not None, "only labels have a place"
    width, height = size
    behind = "behind nested" if nested else "behind"
    style = "label failure" if edge.kind == "failure" else "label"
    yield f'<g><title>{escape(edge.label)}</title><rect class="{behind}" x="{x - width / 2:.1f}" '
    yield f'y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
    for number, line in enumerate(lines):
        at = y - height / 2 + 11.5 + number * NOTE_LINE_PX
        yield f'<text class="{style}" x="{x:.1f}" y="{at:.1f}">{escape(line)}</text>'
    yield "</g>"


def _node(sized: _SizedNode, x: float, y: float) -> Iterable[str]:
    """Draw a node; `x` is the middle of its upper edge."""
    node, left = sized.node, x - sized.width / 2
    yield f"<g><title>{escape(' · '.join((node.title, *node.notes)))}</title>"
    yield _shape(node.kind, left, y, sized.width, sized.height)
    yield from _texts(node, x, y)
    yield "</g>"
    at = left + PAD_PX
    for sized_flow in sized.flows:
        width = sized_flow.width + 2 * PAD_PX
        yield from _inside(sized_flow, at, y + sized.head, width, sized)
        at += width + PAD_PX
    if sized.handler is not None:
        yield from _handler(sized.handler, left + sized.width, y, sized)


def _inside(sized_flow: _SizedFlow, x: float, y: float, width: float, container: _SizedNode) -> Iterable[str]:
    if len(container.flows) == 1:
        x += (container.width - 2 * PAD_PX - width) / 2
    if sized_flow.flow.name:
        height = container.height - container.head - PAD_PX
        yield f'<rect class="branch" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"/>'
        yield f'<text class="note" x="{x + width / 2:.1f}" y="{y + 16:.1f}">{escape(sized_flow.flow.name)}</text>'
    yield from _flow(
        sized_flow, x + PAD_PX, y + sized_flow.head + (PAD_PX if sized_flow.flow.name else PAD_PX / 2), nested=True
    )


def _handler(handler: _SizedNode, x: float, y: float, of: _SizedNode) -> Iterable[str]:
    middle = y + min(of.height, handler.height) / 2
    end = x + HANDLER_GAP_PX
    yield f'<path class="undo" d="M{x:.1f},{middle:.1f} H{end:.1f}"/>'
    yield f'<circle class="tip" cx="{end - 3:.1f}" cy="{middle:.1f}" r="3"/>'
    yield f'<text class="label" x="{x + HANDLER_GAP_PX / 2:.1f}" y="{middle - 5:.1f}">undone by</text>'
    yield from _node(handler, end + handler.width / 2, y)


def _texts(node: Node, x: float, y: float) -> Iterable[str]:
    if node.kind == "start":
        return
    small = node.kind in ("succeed", "fail")
    yield f'<text class="title" x="{x:.1f}" y="{y + (18.5 if small else 22):.1f}">{escape(node.title)}</text>'
    for number, note in enumerate(node.notes):
        at = y + 22 + NOTE_LINE_PX * (number + 1)
        yield f'<text class="note" x="{x:.1f}" y="{at:.1f}">{escape(shortened(note, MAX_NOTE_CHARS))}</text>'


def _shape(kind: str, x: float, y: float, width: float, height: float) -> str:
    """Draw the shape of a kind. Each has a level edge above and below for arrows to meet."""
    right, bottom, slant = x + width, y + height, 12.0
    match kind:
        case "start":
            return f'<circle class="start" cx="{x + width / 2:.1f}" cy="{y + height / 2:.1f}" r="{width / 2:.1f}"/>'
        case "decision":
            middle = y + height / 2
            return _polygon(kind, (x + slant, y), (right - slant, y), (right, middle), (right - slant, bottom),
                            (x + slant, bottom), (x, middle))  # fmt: skip
        case "human_approval":
            return _polygon(kind, (x + slant, y), (right - slant, y), (right, bottom), (x, bottom))
        case "notify":
            middle = y + height / 2
            return _polygon(kind, (x, y), (right - slant, y), (right, middle), (right - slant, bottom), (x, bottom))
        case "external_call":
            bars = "".join(f'<path class="box" d="M{at:.1f},{y:.1f} V{bottom:.1f}"/>' for at in (x + 7, right - 7))
            return _rect(f"box {kind}", x, y, width, height, 2) + bars
        case "wait" | "succeed" | "fail":
            return _rect(f"box {kind}", x, y, width, height, height / 2)
        case "parallel" | "map":
            return _rect("inner", x, y, width, height, 8)
        case _:
            return _rect("box", x, y, width, height, 5)


def _rect(style: str, x: float, y: float, width: float, height: float, round_: float) -> str:
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{round_:.1f}"/>'
    )


def _polygon(kind: str, *points: tuple[float, float]) -> str:
    coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon class="box {kind}" points="{coordinates}"/>'
