"""Positions of the boxes and arrows of one flat graph: layer below layer, as in Sugiyama's method.

Back arrows are set aside and drawn at the left edge. The rest is acyclic: the rank of a box is its
longest path from a start, an arrow over several ranks gets a spot of its own in each of them, and so does a label, in a
rank between. So nothing overlaps. Long arrows of one style to one node run together.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from lucius.authoring.layers import GAP_X_PX, Spot, back_links, connect, put_in_order, ranks, set_x

GAP_Y_PX, CHANNEL_PX, PORT_PX = 22.0, 10.0, 18.0

Point = tuple[float, float]
End = Literal["source", "target"]


class Box(Struct, frozen=True):
    """Extent of a node: `left` and `right` of the point where arrows meet it, and below that."""

    left: float
    right: float
    height: float


class Arrow(Struct, frozen=True):
    source: int
    target: int
    label: tuple[float, float] | None = None
    weight: float = 1.0
    style: str = ""


class ArrowPath(Struct, frozen=True):
    """Path of an arrow: `straight` with corners, otherwise a curve. If `joins`, it ends in another arrow."""

    points: tuple[Point, ...]
    label_at: Point | None = None
    straight: bool = False
    joins: bool = False


class Layout(Struct, frozen=True):
    """Positions in one graph. `nodes` are the points in their upper edges where arrows meet them."""

    width: float
    height: float
    nodes: tuple[Point, ...]
    routes: tuple[ArrowPath, ...]


def lay_out(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> Layout:
    return _LayoutBuilder(boxes, arrows).build()


class _LayoutBuilder:
    """Computes a layout. Nodes have even ranks; the odd ones between them are for labels."""

    def __init__(self, boxes: Sequence[Box], arrows: Sequence[Arrow]) -> None:
        links = [(arrow.source, arrow.target) for arrow in arrows]
        self.arrows = arrows
        self.back = sorted(back_links(len(boxes), links))
        found = ranks(len(boxes), [link for number, link in enumerate(links) if number not in self.back])
        self.nodes = [Spot(2 * rank, box.left, box.right, box.height) for rank, box in zip(found, boxes, strict=True)]
        self.chains: dict[int, list[Spot]] = {}
        self.joins: dict[int, Spot] = {}
        self._make_chains()
        spots = [*self.nodes, *(spot for chain in self.chains.values() for spot in chain)]
        self.layers: list[list[Spot]] = [[] for _ in range(max(spot.rank for spot in spots) + 1)]
        for spot in spots:
            self.layers[spot.rank].append(spot)
        put_in_order(self.layers)
        set_x(self.layers)
        self.lanes: dict[int, float] = {}
        self._place_lanes()
        self._move_to_the_edge()
        self.tops: list[float] = []
        self.bottoms: list[float] = []
        self._set_y()

    def _make_chains(self) -> None:
        """Make the spots of all arrows, the longest first, so that shorter ones can join them."""
        shared: dict[tuple[int, str], dict[int, Spot]] = {}
        onwards = [number for number in range(len(self.arrows)) if number not in self.back]
        for number in sorted(onwards, key=lambda n: self._node(n, "source").rank):
            arrow = self.arrows[number]
            self._make_chain(number, arrow, shared.setdefault((arrow.target, arrow.style), {}))

    def _make_chain(self, number: int, arrow: Arrow, shared: dict[int, Spot]) -> None:
        """Make the spots between both ends of an arrow, its label's right below its source."""
        above = source = self.nodes[arrow.source]
        width, height = arrow.label or (2.0, 0.0)
        chain: list[Spot] = []
        for rank in range(source.rank + 1, self.nodes[arrow.target].rank):
            if rank in shared:
                self.joins[number] = shared[rank]
                break
            spot = Spot(rank, 1.0, 1.0) if chain else Spot(rank, width / 2, width / 2, height)
            connect(above, spot, 8 * arrow.weight if chain else arrow.weight)
            chain.append(spot)
            above = spot
            if rank % 2 == 0:  # only a rank with nodes has the height for another arrow to join
                shared[rank] = spot
        self.chains[number] = chain
        connect(above, self.joins.get(number, self.nodes[arrow.target]), arrow.weight)

    def build(self) -> Layout:
        exits, entries = self._ports("source"), self._ports("target")
        routes = [
            self._back_route(number, exits[number], entries[number])
            if number in self.back
            else self._route(number, exits[number], entries.get(number))
            for number in range(len(self.arrows))
        ]
        width = max(spot.x + spot.right for layer in self.layers for spot in layer)
        height = self.bottoms[-1] + self._channels(len(self.layers) - 1, "source")
        nodes = tuple((node.x, self.tops[node.rank]) for node in self.nodes)
        return Layout(width, height, nodes, tuple(routes))

    def _node(self, number: int, end: End) -> Spot:
        arrow = self.arrows[number]
        return self.nodes[arrow.source if end == "source" else arrow.target]

    # Back arrows

    def _place_lanes(self) -> None:
        """Place back arrows left of everything in the same ranks, the shortest next to the nodes."""

        def ranks_of(number: int) -> tuple[int, int]:
            return self._node(number, "target").rank - 1, self._node(number, "source").rank + 1

        for number in sorted(self.back, key=lambda n: ranks_of(n)[1] - ranks_of(n)[0]):
            top, bottom = ranks_of(number)
            beside = [spot.x - spot.left for layer in self.layers[max(0, top) : bottom + 1] for spot in layer]
            for other, x in self.lanes.items():
                if ranks_of(other)[0] <= bottom and top <= ranks_of(other)[1]:
                    beside.append(x - self._half_lane(other))
            self.lanes[number] = min(beside) - self._half_lane(number) - GAP_X_PX / 2

    def _half_lane(self, number: int) -> float:
        label = self.arrows[number].label
        return label[0] / 2 if label else 1.0

    def _move_to_the_edge(self) -> None:
        spots = [spot for layer in self.layers for spot in layer]
        lefts = [spot.x - spot.left for spot in spots] + [x - self._half_lane(n) for n, x in self.lanes.items()]
        edge = min(lefts)
        self.lanes = {number: x - edge for number, x in self.lanes.items()}
        for spot in spots:
            spot.x -= edge

    def _channels(self, rank: int, end: End) -> float:
        """Return the room for the horizontal parts of back arrows, below their sources and above their targets."""
        count = sum(self._node(number, end).rank == rank for number in self.back)
        return CHANNEL_PX * (count + 1) if count else 0.0

    def _channel(self, number: int, end: End) -> float:
        """Return how far this arrow's horizontal part is from the rank."""
        rank = self._node(number, end).rank
        return CHANNEL_PX * (1 + [other for other in self.back if self._node(other, end).rank == rank].index(number))

    def _back_route(self, number: int, out: float, into: float) -> ArrowPath:
        """Return the route of a back arrow: out below, up along the left edge, and in from above."""
        source, target = self._node(number, "source"), self._node(number, "target")
        lane = self.lanes[number]
        below = self.bottoms[source.rank] + self._channel(number, "source")
        above = self.tops[target.rank] - self._channel(number, "target")
        start, end = (out, self.tops[source.rank] + source.height), (into, self.tops[target.rank])
        points = (start, (out, below), (lane, below), (lane, above), (into, above), end)
        labelled = self.arrows[number].label is not None
        return ArrowPath(points, (lane, (above + below) / 2) if labelled else None, straight=True)

    # Forward arrows

    def _set_y(self) -> None:
        y = 0.0
        for rank, layer in enumerate(self.layers):
            height = max((spot.height for spot in layer), default=0.0)
            if rank > 0 and (height or rank % 2 == 0):
                y += GAP_Y_PX
            y += self._channels(rank, "target")
            self.tops.append(y)
            y += height
            self.bottoms.append(y)
            y += self._channels(rank, "source")

    def _ports(self, end: End) -> dict[int, float]:
        """Return where arrows meet their nodes, spread along the edge in the order of their directions."""
        found = {}
        for node in self.nodes:
            ours = [number for number in range(len(self.arrows)) if self._node(number, end) is node]
            if end == "target":
                ours = [number for number in ours if number not in self.joins]
            ours.sort(key=lambda number: self._heads_for(number, end))
            step = min(PORT_PX, 1.2 * min(node.left, node.right) / max(1, len(ours)))
            for place, number in enumerate(ours):
                found[number] = node.x + (place - (len(ours) - 1) / 2) * step
        return found

    def _heads_for(self, number: int, end: End) -> float:
        if number in self.back:
            return self.lanes[number]
        chain = self.chains[number]  # never empty: between two nodes is at least a rank for labels
        return chain[0 if end == "source" else -1].x

    def _route(self, number: int, out: float, into: float | None) -> ArrowPath:
        source, chain = self._node(number, "source"), self.chains[number]
        end = self.joins.get(number, self._node(number, "target"))
        points = [(out, self.tops[source.rank] + source.height), (out, self.bottoms[source.rank])]
        for spot in chain:
            if self.tops[spot.rank] < self.bottoms[spot.rank]:  # an empty rank has no height
                points += [(spot.x, self.tops[spot.rank]), (spot.x, self.bottoms[spot.rank])]
        points.append((end.x if into is None else into, self.tops[end.rank]))
        label_at = None
        if self.arrows[number].label is not None:
            label_at = (chain[0].x, self.tops[chain[0].rank] + chain[0].height / 2)
        return ArrowPath(tuple(points), label_at, joins=into is None)
