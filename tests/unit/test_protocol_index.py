"""Which version serves, and the replacement of one that no longer does."""

from lucius.core.protocol.definition import ProtocolDefinition, StepSpec
from lucius.ports.protocols import Mark, ProtocolVersion, Successor, VersionStatus
from lucius.usecases.catalog.index import Index

DRAFT, PUBLISHED, DEPRECATED = VersionStatus


def version(
    name: str, number: int, status: VersionStatus = PUBLISHED, to: Successor | None = None, *aliases: str
) -> ProtocolVersion:
    protocol = ProtocolDefinition(
        protocol_id=name, version=number, request_type=name, steps=(StepSpec(step_id="a"),), aliases=aliases
    )
    mark = Mark("ann", 1)
    return ProtocolVersion(protocol=protocol, digest="", status=status, created=mark, successor=to)


def named(protocol: ProtocolDefinition | None) -> tuple[str, int] | None:
    return (protocol.request_type, protocol.version) if protocol else None


def test_newest_published_version_serves_whatever_the_order() -> None:
    index = Index([version("A", 2), version("A", 3, DEPRECATED), version("A", 1), version("A", 4, DRAFT)])
    assert named(index.resolve("A")) == ("A", 2)
    assert [named(index.resolve("A", number)) for number in (1, 2, 3, 4)] == [("A", 1), ("A", 2), None, None]
    assert [named(protocol) for protocol in index.list()] == [("A", 1), ("A", 2)]


def test_alias_of_any_version_resolves_to_the_newest() -> None:
    index = Index([version("A", 1, DEPRECATED, None, "old"), version("A", 2)])
    assert named(index.resolve("old")) == ("A", 2)
    assert index.request_type("old") == "A"
    assert index.request_type("other") is None


def test_draft_cannot_be_resolved_by_its_names() -> None:
    index = Index([version("A", 1, DRAFT, None, "b")])
    assert index.request_type("A") is index.request_type("b") is None
    assert index.clash(version("B", 1, DRAFT, None, "b").protocol) is None


def test_only_deprecated_versions_without_a_published_one_are_retired() -> None:
    index = Index(
        [version("A", 1, DEPRECATED), version("A", 2), version("B", 1, DEPRECATED), version("B", 2, DEPRECATED)]
    )
    assert index.retired("A") is None
    assert index.retired("A", 2) is index.retired("A", 9) is index.retired("C") is None
    found = [index.retired("A", 1), index.retired("B"), index.retired("B", 1)]
    assert [version.key if version else None for version in found] == [("A", 1), ("B", 2), ("B", 1)]


def test_circular_successors_end_at_a_published_version() -> None:
    one = version("A", 1, DEPRECATED, Successor("B", 1))
    two = version("B", 1, DEPRECATED, Successor("A", 1))
    assert Index([one, two]).successor(one) is None
    assert named(Index([one, two, version("A", 2)]).successor(one)) == ("A", 2)
    assert named(Index([one, two, version("B", 2)]).successor(one)) is None


def test_successor_without_a_version_is_the_newest_published_one() -> None:
    one = version("A", 1, DEPRECATED, Successor("B"))
    assert named(Index([one, version("B", 1), version("B", 2)]).successor(one)) == ("B", 2)
    gone = version("B", 1, DEPRECATED, Successor("C"))
    assert named(Index([one, gone, version("C", 7)]).successor(one)) == ("C", 7)
