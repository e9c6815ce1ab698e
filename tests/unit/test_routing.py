import json
from pathlib import Path
from typing import Any

import pytest

from lucius.core.model.routing import normalise_tenant, route, topic
from lucius.core.model.statuses import Mode

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "routing.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['tenant_id']}-{vector['doc_id']}")
def test_a_routing_vector_gives_its_key_and_lane(vector: dict[str, Any]) -> None:
    tenant = normalise_tenant(vector["tenant_id"])
    assert tenant is not None
    routing = route(tenant, vector["doc_id"], Mode(vector["mode"]), "REQUEST", "because")
    assert (routing.routing_key_used, routing.lane) == (vector["routing_key_used"], vector["lane"])
    assert routing.resolved_mode == vector["mode"]


def test_a_tenant_id_is_trimmed_and_lower_cased() -> None:
    assert normalise_tenant(" Acme.Corp_1-x\n") == "acme.corp_1-x"
    assert normalise_tenant("a" * 128) == "a" * 128


@pytest.mark.parametrize("bad", ["", "  ", "-acme", ".acme", "a b", "a/b", "a\nb", "acmé", "a" * 129, "acme|x"])
def test_invalid_tenant_id_is_refused(bad: str) -> None:
    assert normalise_tenant(bad) is None


def test_unicode_character_that_lower_cases_to_ascii_does_not_select_another_tenant() -> None:
    assert "\u212a".lower() == "k"
    assert normalise_tenant("\u212ahan") is None


def test_safe_mode_routes_as_default() -> None:
    safe, default = (route("acme", "d", mode, "s", "r") for mode in (Mode.SAFE, Mode.DEFAULT))
    assert safe == default
    assert safe.resolved_mode is Mode.DEFAULT


def test_default_mode_ignores_the_document_and_burst_spreads_by_it() -> None:
    assert {route("acme", f"doc-{n}", Mode.DEFAULT, "s", "r").lane for n in range(50)} == {14}
    assert len({route("acme", f"doc-{n}", Mode.BURST, "s", "r").lane for n in range(200)}) == 16


@pytest.mark.parametrize("doc_id", [None, "", "  "])
def test_burst_without_a_document_has_no_route(doc_id: str | None) -> None:
    with pytest.raises(ValueError, match="doc_id"):
        route("acme", doc_id, Mode.BURST, "s", "r")


@pytest.mark.parametrize(
    ("layout", "mode", "expected"),
    [
        ("shared", Mode.DEFAULT, "global-bus-p7"),
        ("shared", Mode.BURST, "global-bus-p7"),
        ("isolated", Mode.DEFAULT, "global-default-p7"),
        ("isolated", Mode.SAFE, "global-default-p7"),
        ("isolated", Mode.BURST, "global-burst-p7"),
    ],
)
def test_the_layout_names_the_topic_of_a_lane(layout: str, mode: Mode, expected: str) -> None:
    assert topic(layout, mode, 7) == expected


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="shared or isolated"):
        topic("other", Mode.DEFAULT, 0)
