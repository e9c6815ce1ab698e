"""Elements of a drawn protocol do not overlap."""

from collections.abc import Iterator
from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from lucius.authoring.layers import fitted
from lucius.authoring.layout import Arrow, Box, Layout, Point, lay_out

Rect = tuple[float, float, float, float]  # left, top, right, bottom

boxes = st.builds(Box, st.floats(5, 90), st.floats(5, 200), st.floats(10, 300))
labels = st.none() | st.tuples(st.floats(10, 200), st.floats(10, 40))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Box], list[Arrow]]:
    made = draw(st.lists(boxes, min_size=1, max_size=9))
    ends = st.integers(0, len(made) - 1)
    return made, draw(st.lists(st.builds(Arrow, ends, ends, labels), max_size=14))


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_boxes_and_labels_do_not_overlap(graph: tuple[list[Box], list[Arrow]]) -> None:
    made, arrows = graph
    layout = lay_out(made, arrows)
    rects = [*_rects(made, layout), *_labels(arrows, layout)]
    assert not [pair for pair in combinations(rects, 2) if _overlap(*pair)]
    assert all(left >= -0.01 and top >= -0.01 for left, top, _, _ in rects)
    assert all(right <= layout.width + 0.01 and bottom <= layout.height + 0.01 for _, _, right, bottom in rects)


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_arrows_do_not_cross_boxes(graph: tuple[list[Box], list[Arrow]]) -> None:
    made, arrows = graph
    layout = lay_out(made, arrows)
    for arrow, route in zip(arrows, layout.routes, strict=True):
        for rect in _rects(made, layout):
            assert not [point for point in _along(route.points, route.straight) if _inside(point, rect)], arrow


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_an_arrow_leaves_its_source_below_and_enters_its_target_from_above(
    graph: tuple[list[Box], list[Arrow]],
) -> None:
    made, arrows = graph
    layout = lay_out(made, arrows)
    rects = _rects(made, layout)
    for arrow, route in zip(arrows, layout.routes, strict=True):
        (x, y), (into_x, into_y) = route.points[0], route.points[-1]
        source, target = rects[arrow.source], rects[arrow.target]
        assert source[0] <= x <= source[2]
        assert abs(y - source[3]) < 0.01
        if route.joins:
            same = [
                r for a, r in zip(arrows, layout.routes, strict=True) if a.target == arrow.target and r is not route
            ]
            assert any(route.points[-1] in other.points[1:-1] for other in same)
            continue
        assert target[0] <= into_x <= target[2]
        assert abs(into_y - target[1]) < 0.01


def test_a_list_of_steps_is_drawn_as_one_straight_line() -> None:
    layout = lay_out([Box(40, 40, 30), Box(60, 200, 30), Box(20, 20, 30)], [Arrow(0, 1), Arrow(1, 2)])
    assert len({round(x, 3) for x, _ in layout.nodes}) == 1
    assert [y for _, y in layout.nodes] == sorted(y for _, y in layout.nodes)


def test_steps_before_a_fork_stay_in_line_for_uneven_branches() -> None:
    made = [Box(40, 40, 30)] * 6
    arrows = [Arrow(0, 1), Arrow(1, 2), Arrow(2, 3, (190, 14)), Arrow(2, 4, (10, 14)), Arrow(4, 5)]
    xs = [x for x, _ in lay_out(made, arrows).nodes]
    assert max(xs[:3]) - min(xs[:3]) < 0.001
    assert abs(xs[4] - xs[5]) < 0.001


def test_graph_of_many_nodes_is_laid_out_quickly() -> None:
    many = 300
    arrows = [Arrow(n, n + 1) for n in range(many - 1)] + [Arrow(n, n + 7, (80, 14)) for n in range(0, many - 8, 5)]
    assert len(lay_out([Box(40, 40, 30)] * many, arrows).nodes) == many


def test_fitted_positions_keep_order_and_distance_near_the_wanted_ones() -> None:
    assert fitted([0, 0, 100], [1, 1, 1], [10, 10]) == [-5, 5, 100]
    assert fitted([5], [1], []) == [5]
    assert fitted([], [], []) == []


def _rects(made: list[Box], layout: Layout) -> list[Rect]:
    return [(x - box.left, y, x + box.right, y + box.height) for box, (x, y) in zip(made, layout.nodes, strict=True)]


def _labels(arrows: list[Arrow], layout: Layout) -> Iterator[Rect]:
    for arrow, route in zip(arrows, layout.routes, strict=True):
        assert (arrow.label is None) == (route.label_at is None)
        if arrow.label is not None and route.label_at is not None:
            (width, height), (x, y) = arrow.label, route.label_at
            way_up = abs(route.points[2][1] - route.points[3][1]) if route.straight else height
            if height <= way_up:  # a label may be taller than the length of the back edge that it is on
                yield x - width / 2, y - height / 2, x + width / 2, y + height / 2


def _overlap(a: Rect, b: Rect) -> bool:
    return a[0] < b[2] - 0.01 and b[0] < a[2] - 0.01 and a[1] < b[3] - 0.01 and b[1] < a[3] - 0.01


def _along(points: tuple[Point, ...], straight: bool) -> Iterator[Point]:
    """Yield points of the segment between two points as the picture draws it, curved or straight."""
    for (x, y), (next_x, next_y) in pairwise(points):
        middle = (y + next_y) / 2
        for t in (n / 12 for n in range(1, 12)):
            if straight:
                yield x + (next_x - x) * t, y + (next_y - y) * t
            else:
                rest = 1 - t
                across = x * (rest**3 + 3 * rest**2 * t) + next_x * (3 * rest * t**2 + t**3)
                yield across, rest**3 * y + 3 * rest**2 * t * middle + 3 * rest * t**2 * middle + t**3 * next_y


def _inside(point: Point, rect: Rect) -> bool:
    return rect[0] + 0.01 < point[0] < rect[2] - 0.01 and rect[1] + 0.01 < point[1] < rect[3] - 0.01
