"""Checks of flows: every target exists, every step can be reached, and every path can end."""

from collections.abc import Iterator

from lucius.core.protocol.definition import FAIL, SUCCEED, StepSpec
from lucius.core.protocol.validation.locations import Finding, Path, ProtocolOutline, Site, StepList
from lucius.core.protocol.validation.shape import can_fail
from lucius.core.protocol.validation.suggestions import did_you_mean

ENDS = frozenset({SUCCEED, FAIL})


def check_flows(layout: ProtocolOutline) -> Iterator[Finding]:
    for scope in layout.scopes:
        known = {site.step_id for site in scope.sites}
        unknown = [
            Finding(path, _unknown(target, site, known, layout))
            for site in scope.sites
            for path, target in _targets(site)
            if target not in known and target not in ENDS
        ]
        yield from unknown
        if not unknown:  # else its paths are unknown
            yield from _path_findings(scope)


def _targets(site: Site) -> Iterator[tuple[Path, str]]:
    """Yield each target that a step names, with its path in the document."""
    spec = site.spec
    for name in ("on_success", "on_failure", "on_timeout"):
        target = getattr(spec, name)
        if target is not None:
            yield (*site.path, name), target
    if spec.decision is not None:
        for number, choice in enumerate(spec.decision.choices):
            yield (*site.path, "decision", "choices", number, "then"), choice.then
        yield (*site.path, "decision", "otherwise"), spec.decision.otherwise


def _unknown(target: str, site: Site, known: set[str], layout: ProtocolOutline) -> str:
    found = layout.by_id.get(target)
    if found is None:
        return f"there is no step {target}{did_you_mean(target, {*known, *ENDS})}"
    if found.handler_of is not None:
        return f"{target} is the compensation of {found.handler_of.step_id}, and no flow can lead there"
    inside = f"inside {found.scope.around.step_id}" if found.scope.around is not None else "outside"
    return f"{target} is {inside}; a step can only lead to steps of its own list, to SUCCEED or to FAIL"


def _path_findings(scope: StepList) -> Iterator[Finding]:
    edges = {site.step_id: _targets_after(scope, number) for number, site in enumerate(scope.sites)}
    first = scope.sites[0]
    reached = _reachable(edges, first.step_id)
    for site in scope.sites:
        if site.step_id not in reached:
            yield Finding((*site.path, "step_id"), f"nothing leads to the step {site.step_id}")
    endless = [site for site in scope.sites if site.step_id in reached and not _reachable(edges, site.step_id) & ENDS]
    if endless:
        names = ", ".join(site.step_id for site in endless)
        yield Finding((*endless[0].path, "step_id"), f"there is no way out of {names}: no path from there ends")
    elif SUCCEED not in reached:
        yield Finding(first.path, "nothing leads to SUCCEED: this can only fail", fatal=False)
    yield from _loop_findings(scope, edges)
    yield from _fallthrough_findings(scope)


def _loop_findings(scope: StepList, edges: dict[str, set[str]]) -> Iterator[Finding]:
    """Refuse loops over steps with a handler, which undoes only the last visit."""
    for site in scope.sites:
        following = edges[site.step_id] - ENDS
        if _has_handler(site.spec) and any(site.step_id in _reachable(edges, other) for other in following):
            reason = (
                f"{site.step_id} is in a loop, and a handler would undo only its last visit: undo it by steps instead"
            )
            yield Finding(site.path, reason)


def _has_handler(spec: StepSpec) -> bool:
    inner = spec.map.steps if spec.map is not None else ()
    branches = spec.parallel.branches.values() if spec.parallel is not None else ()
    within = (*inner, *(step for branch in branches for step in branch))
    return spec.compensation is not None or any(map(_has_handler, within))


def _targets_after(scope: StepList, number: int) -> set[str]:
    """Return every target that can follow a step."""
    site = scope.sites[number]
    spec, targets = site.spec, {target for _, target in _targets(site)}
    if spec.kind != "decision" and spec.on_success is None:
        targets.add(scope.sites[number + 1].step_id if number + 1 < len(scope.sites) else SUCCEED)
    if spec.on_failure is None and can_fail(spec):
        targets.add(FAIL)
    return targets


def _reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    reached, todo = {start}, [start]
    while todo:
        fresh = edges.get(todo.pop(), set()) - reached
        reached |= fresh
        todo += fresh
    return reached


def _fallthrough_findings(scope: StepList) -> Iterator[Finding]:
    """Warn of branches that fall through into the next one."""
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
