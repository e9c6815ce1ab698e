"""Checks of where flows lead: that targets are there, that every step is reached, and that an end is."""

from collections.abc import Iterator

from lucius.core.check_shape import can_fail
from lucius.core.check_sites import Finding, Layout, Path, Scope, Site
from lucius.core.protocol import FAIL, SUCCEED, StepSpec
from lucius.core.suggest import did_you_mean

ENDS = frozenset({SUCCEED, FAIL})


def check_flows(layout: Layout) -> Iterator[Finding]:
    for scope in layout.scopes:
        known = {site.step_id for site in scope.sites}
        strangers = [
            Finding(path, _unknown(target, site, known, layout))
            for site in scope.sites
            for path, target in _targets(site)
            if target not in known and target not in ENDS
        ]
        yield from strangers
        if not strangers:  # else the way through the list is not known
            yield from _ways(scope)


def _targets(site: Site) -> Iterator[tuple[Path, str]]:
    """What a step names as its next, and where it does."""
    spec = site.spec
    for name in ("on_success", "on_failure", "on_timeout"):
        target = getattr(spec, name)
        if target is not None:
            yield (*site.path, name), target
    if spec.decision is not None:
        for number, choice in enumerate(spec.decision.choices):
            yield (*site.path, "decision", "choices", number, "then"), choice.then
        yield (*site.path, "decision", "otherwise"), spec.decision.otherwise


def _unknown(target: str, site: Site, known: set[str], layout: Layout) -> str:
    found = layout.by_id.get(target)
    if found is None:
        return f"there is no step {target}{did_you_mean(target, {*known, *ENDS})}"
    if found.handler_of is not None:
        return f"{target} is the compensation of {found.handler_of.step_id}, and no flow can lead there"
    inside = f"inside {found.scope.around.step_id}" if found.scope.around is not None else "outside"
    return f"{target} is {inside}; a step can only lead to steps of its own list, to SUCCEED or to FAIL"


def _ways(scope: Scope) -> Iterator[Finding]:
    edges = {site.step_id: _next(scope, number) for number, site in enumerate(scope.sites)}
    first = scope.sites[0]
    reached = _reach(edges, first.step_id)
    for site in scope.sites:
        if site.step_id not in reached:
            yield Finding((*site.path, "step_id"), f"nothing leads to the step {site.step_id}")
    trapped = [site for site in scope.sites if site.step_id in reached and not _reach(edges, site.step_id) & ENDS]
    if trapped:
        names = ", ".join(site.step_id for site in trapped)
        yield Finding((*trapped[0].path, "step_id"), f"there is no way out of {names}: no path from there ends")
    elif SUCCEED not in reached:
        yield Finding(first.path, "nothing leads to SUCCEED: this can only fail", fatal=False)
    yield from _undone_once(scope, edges)
    yield from _fallen_into(scope)


def _undone_once(scope: Scope, edges: dict[str, set[str]]) -> Iterator[Finding]:
    """A handler undoes what its step did last; what a loop did before that would stay."""
    for site in scope.sites:
        following = edges[site.step_id] - ENDS
        if _has_handler(site.spec) and any(site.step_id in _reach(edges, other) for other in following):
            reason = (
                f"{site.step_id} is in a loop, and a handler would undo only its last visit: undo it by steps instead"
            )
            yield Finding(site.path, reason)


def _has_handler(spec: StepSpec) -> bool:
    inner = spec.map.steps if spec.map is not None else ()
    branches = spec.parallel.branches.values() if spec.parallel is not None else ()
    within = (*inner, *(step for branch in branches for step in branch))
    return spec.compensation is not None or any(map(_has_handler, within))


def _next(scope: Scope, number: int) -> set[str]:
    """Every way on from a step."""
    site = scope.sites[number]
    spec, ways = site.spec, {target for _, target in _targets(site)}
    if spec.kind != "decision" and spec.on_success is None:
        ways.add(scope.sites[number + 1].step_id if number + 1 < len(scope.sites) else SUCCEED)
    if spec.on_failure is None and can_fail(spec):
        ways.add(FAIL)
    return ways


def _reach(edges: dict[str, set[str]], start: str) -> set[str]:
    reached, todo = {start}, [start]
    while todo:
        fresh = edges.get(todo.pop(), set()) - reached
        reached |= fresh
        todo += fresh
    return reached


def _fallen_into(scope: Scope) -> Iterator[Finding]:
    """Warns where the end of one branch runs on into the next."""
    chosen_by: dict[str, dict[str, None]] = {}
    for site in scope.sites:
        for path, target in _targets(site):
            if path[-1] != "on_success":
                chosen_by.setdefault(target, {})[site.step_id] = None
    for before, site in zip(scope.sites, scope.sites[1:], strict=False):
        falls = before.spec.kind != "decision" and before.spec.on_success is None
        if falls and site.step_id in chosen_by:
            reason = (
                f"{site.step_id} is a branch of {', '.join(chosen_by[site.step_id])} and also follows "
                f"{before.step_id}; an on_success at {before.step_id} would say what is meant"
            )
            yield Finding(site.path, reason, fatal=False)
