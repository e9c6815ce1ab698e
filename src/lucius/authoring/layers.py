"""Layers of a drawing: the rank of each node, the order within a rank, and the horizontal position."""

import random
from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

GAP_X_PX = 26.0
MAX_SWEEPS, MAX_STARTS = 12, 8
MAX_SPOTS_FOR_RESTARTS = 1_000  # number of spots above which there is only one start

Link = tuple[int, int]  # from one node to another


class Spot(Struct, eq=False):
    """A position in a rank: a node, a label, or a point of an arrow. `x` is where arrows meet it."""

    rank: int
    left: float
    right: float
    height: float = 0.0
    x: float = 0.0
    up: "list[tuple[Spot, float]]" = []
    down: "list[tuple[Spot, float]]" = []


Layers = list[list[Spot]]


def connect(upper: Spot, lower: Spot, weight: float) -> None:
    """Connect two spots; the larger `weight`, the straighter the line."""
    upper.down.append((lower, weight))
    lower.up.append((upper, weight))


def back_links(count: int, links: Sequence[Link]) -> set[int]:
    """Return the links that close a cycle, when the graph is walked depth first and in the order of the links."""
    out: list[list[int]] = [[] for _ in range(count)]
    for number, (source, _) in enumerate(links):
        out[source].append(number)
    found: set[int] = set()
    done: set[int] = set()
    for start in range(count):
        if start not in done:
            _walk(start, links, out, done, found)
    return found


def _walk(start: int, links: Sequence[Link], out: list[list[int]], done: set[int], found: set[int]) -> None:
    on_the_way: set[int] = {start}
    stack = [(start, iter(out[start]))]
    while stack:
        node, left = stack[-1]
        number = next(left, None)
        if number is None:
            stack.pop()
            on_the_way.discard(node)
            done.add(node)
            continue
        target = links[number][1]
        if target in on_the_way:
            found.add(number)
        elif target not in done:
            on_the_way.add(target)
            stack.append((target, iter(out[target])))


def ranks(count: int, links: Sequence[Link]) -> list[int]:
    """Return the length of the longest path to each node from a start, in a graph without cycles."""
    found, waiting = [0] * count, [0] * count
    out: list[list[int]] = [[] for _ in range(count)]
    for source, target in links:
        waiting[target] += 1
        out[source].append(target)
    free = [node for node in range(count) if not waiting[node]]
    while free:
        node = free.pop()
        for target in out[node]:
            found[target] = max(found[target], found[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                free.append(target)
    return found


def put_in_order(layers: Layers) -> None:
    """Order each layer by the positions of its neighbours.

    Sweeps down and up, from several starts, and keeps the order with the fewest crossings.
    """
    best, fewest = [list(layer) for layer in layers], _crossings(layers)
    shuffled = random.Random(0)
    large = sum(map(len, layers)) > MAX_SPOTS_FOR_RESTARTS
    for start in range(1 if large else MAX_STARTS):
        for layer in layers if start else ():
            shuffled.shuffle(layer)
        for sweep in range(MAX_SWEEPS):
            if not fewest:
                break
            _sweep(layers, downwards=sweep % 2 == 0)
            crossings = _crossings(layers)
            if crossings < fewest:
                best, fewest = [list(layer) for layer in layers], crossings
    for layer, order in zip(layers, best, strict=True):
        layer[:] = order


def _sweep(layers: Layers, *, downwards: bool) -> None:
    for before, layer in pairwise(layers if downwards else layers[::-1]):
        places = {id(spot): place for place, spot in enumerate(before)}
        wanted = {}
        for place, spot in enumerate(layer):
            neighbours = [places[id(other)] for other, _ in (spot.up if downwards else spot.down)]
            wanted[id(spot)] = sum(neighbours) / len(neighbours) if neighbours else place
        layer.sort(key=lambda spot: wanted[id(spot)])


def _crossings(layers: Layers) -> int:
    count = 0
    for layer, lower in pairwise(layers):
        places = {id(spot): place for place, spot in enumerate(lower)}
        before: list[int] = []
        for spot in layer:
            ends = sorted(places[id(other)] for other, _ in spot.down)
            count += sum(len(before) - bisect_right(before, end) for end in ends)
            for end in ends:
                insort(before, end)
    return count


def set_x(layers: Layers) -> None:
    """Place every spot as near to its neighbours as its layer allows, and align chains."""
    for layer in layers:
        _put(layer, [0.0] * len(layer), [1.0] * len(layer))
    large = sum(map(len, layers)) > MAX_SPOTS_FOR_RESTARTS
    for sweep in range(MAX_SWEEPS if large else 4 * MAX_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            pulls = [[(other.x, weight) for other, weight in (*spot.up, *spot.down)] for spot in layer]
            weights = [sum(weight for _, weight in pull) for pull in pulls]
            wanted = [
                sum(x * weight for x, weight in pull) / total if total else spot.x
                for spot, pull, total in zip(layer, pulls, weights, strict=True)
            ]
            _put(layer, wanted, [weight or 0.1 for weight in weights])
    lines = _lines(layers)
    for _ in range(MAX_SWEEPS):
        middles = {}
        for line in lines:
            middles.update(dict.fromkeys(map(id, line), sum(spot.x for spot in line) / len(line)))
        for layer in layers:
            _put(layer, [middles[id(spot)] for spot in layer], [1.0] * len(layer))


def _lines(layers: Layers) -> list[list[Spot]]:
    """Return chains of spots, one below the other, with nothing branching off or joining between them."""
    lines: dict[int, list[Spot]] = {}
    for layer in layers:
        for spot in layer:
            above = spot.up[0][0] if len(spot.up) == 1 else None
            line = lines[id(above)] if above is not None and len(above.down) == 1 else []
            line.append(spot)
            lines[id(spot)] = line
    return list({id(line): line for line in lines.values()}.values())


def _put(layer: list[Spot], wanted: list[float], weights: list[float]) -> None:
    gaps = [a.right + GAP_X_PX + b.left for a, b in pairwise(layer)]
    for spot, x in zip(layer, fitted(wanted, weights, gaps), strict=True):
        spot.x = x


def fitted(wanted: Sequence[float], weights: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Return positions as near to the wanted ones as possible with `gaps[i]` or more between the i-th and the next.

    Without the gaps this is isotonic regression: values that are out of order are pooled and share their mean.
    """
    offsets = [0.0]
    for gap in gaps:
        offsets.append(offsets[-1] + gap)
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for want, weight, offset in zip(wanted, weights, offsets, strict=False):
        mean, total, count = want - offset, weight, 1
        while pools and pools[-1][0] > mean:
            before, weight_before, count_before = pools.pop()
            mean = (before * weight_before + mean * total) / (weight_before + total)
            total, count = total + weight_before, count + count_before
        pools.append((mean, total, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]
