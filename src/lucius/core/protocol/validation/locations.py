"""Layout of a protocol for its checks: each step with its document path and the list that contains it."""

from collections.abc import Iterator

from msgspec import Struct, field

from lucius.core.protocol.definition import ProtocolDefinition, StepSpec

Path = tuple[str | int, ...]


class Finding(Struct, frozen=True):
    """A finding for the protocol's author; `fatal` if the protocol can't be used."""

    path: Path
    reason: str
    fatal: bool = True


class StepList(Struct, eq=False):
    """A list of steps that forms a flow: of the protocol, of a branch, or of a map."""

    path: Path
    around: "Site | None"
    sites: "list[Site]" = field(default_factory=list)

    def outwards(self) -> "Iterator[StepList]":
        """Yield this list and those around it, innermost first."""
        yield self
        if self.around is not None:
            yield from self.around.scope.outwards()


class Site(Struct, eq=False):
    spec: StepSpec
    path: Path
    scope: StepList
    handler_of: "Site | None" = None

    @property
    def step_id(self) -> str:
        return self.spec.step_id

    @property
    def maps(self) -> int:
        """Number of maps around the step."""
        return sum(around.spec.map is not None for around in self.containers())

    def containers(self) -> "Iterator[Site]":
        for scope in self.scope.outwards():
            if scope.around is not None:
                yield scope.around


class ProtocolOutline(Struct, eq=False):
    """All scopes and steps, in document order. `by_id` has the first of several steps with one id."""

    scopes: list[StepList] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    by_id: dict[str, Site] = field(default_factory=dict)


def lay_out(protocol: ProtocolDefinition) -> ProtocolOutline:
    layout = ProtocolOutline()
    _add_scope(layout, protocol.steps, ("steps",), None)
    return layout


def _add_scope(layout: ProtocolOutline, steps: tuple[StepSpec, ...], path: Path, around: Site | None) -> None:
    scope = StepList(path, around)
    layout.scopes.append(scope)
    for number, spec in enumerate(steps):
        site = Site(spec, (*path, number), scope)
        scope.sites.append(site)
        _add_site(layout, site)


def _add_site(layout: ProtocolOutline, site: Site) -> None:
    spec = site.spec
    layout.sites.append(site)
    layout.by_id.setdefault(spec.step_id, site)
    if spec.parallel is not None:
        for name, steps in spec.parallel.branches.items():
            _add_scope(layout, steps, (*site.path, "parallel", "branches", name), site)
    if spec.map is not None:
        _add_scope(layout, spec.map.steps, (*site.path, "map", "steps"), site)
    if spec.compensation is not None:
        _add_site(layout, Site(spec.compensation, (*site.path, "compensation"), site.scope, handler_of=site))
