"""The published schemas agree with the code, change only by additions, and accept their own examples."""

import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from scripts.additive import schema_breaks
from scripts.schemas import FOLDER, breaks, committed, generated, stale

Json = Any
Mutate = Callable[[Json], object]


@pytest.fixture(scope="module")
def now() -> dict[str, Json]:
    return generated()


def test_committed_files_are_current(now: dict[str, Json]) -> None:
    assert stale(FOLDER, now) == [], "run `make schemas`"


def test_code_only_adds_to_the_committed_schemas(now: dict[str, Json]) -> None:
    assert breaks(committed(FOLDER), now) == []


def test_generation_is_deterministic(now: dict[str, Json]) -> None:
    assert json.dumps(generated(), sort_keys=True) == json.dumps(now, sort_keys=True)


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.schemas", *arguments]
    return subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True, check=False)


def test_breaking_change_is_refused_naming_the_field_and_nothing_is_written(tmp_path: Path) -> None:
    assert script("--folder", str(tmp_path)).returncode == 0
    assert stale(tmp_path, committed(FOLDER)) == []
    directive = tmp_path / "v1" / "directive.json"
    schema = json.loads(directive.read_text())
    schema["$defs"]["Directive"]["properties"]["colour"] = {"type": "string"}  # published, but gone from the code
    (tmp_path / "v1" / "command.json").write_text("{}")
    directive.write_text(json.dumps(schema))
    refused = script("--folder", str(tmp_path))
    assert refused.returncode == 1
    assert "v1/directive.json: /colour: the field was removed" in refused.stderr
    assert (tmp_path / "v1" / "command.json").read_text() == "{}"


def test_stale_schema_file_is_reported(tmp_path: Path) -> None:
    assert script("--folder", str(tmp_path)).returncode == 0
    openapi = tmp_path / "openapi.json"
    document = json.loads(openapi.read_text())
    del document["paths"]["/v1/jobs"]["get"]["summary"]
    openapi.write_text(json.dumps(document))
    checked = script("--folder", str(tmp_path), "--check")
    assert (checked.returncode, "openapi.json" in checked.stderr) == (1, True)


# The checker on a schema small enough to understand.

THING: Json = {
    "$ref": "#/$defs/Thing",
    "$defs": {
        "Thing": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 10},
                "colour": {"enum": ["red", "green"]},
                "size": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}], "default": None},
                "ratio": {"type": "number"},
                "at": {"type": "string", "format": "date-time"},
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
                "part": {"$ref": "#/$defs/Part"},
                "parts": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/Part"}, {"type": "null"}]}},
                "notes": {"type": "object", "additionalProperties": {"type": "string"}},
                "anything": {},
                "count": {"type": "integer", "default": 3},
                "word": {"type": "string", "pattern": "^a", "default": ""},
            },
            "required": ["name", "part"],
            "additionalProperties": False,
        },
        "Part": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    },
}


def thing(schema: Json) -> Json:
    return schema["$defs"]["Thing"]


def field(schema: Json, name: str) -> Json:
    return thing(schema)["properties"][name]


def sets(path: str, **values: Any) -> Mutate:
    """Return a mutation of a field, given as a path of names and indexes below the thing's properties."""

    def mutate(schema: Json) -> None:
        target = thing(schema)["properties"]
        for part in path.split("."):
            target = target[int(part)] if part.isdigit() else target[part]
        target.update(values)

    return mutate


def drops(name: str) -> Mutate:
    return lambda schema: thing(schema)["properties"].pop(name)


def adds(name: str, **schema_of_it: Any) -> Mutate:
    return lambda schema: thing(schema)["properties"].update({name: schema_of_it})


def requires(*names: str) -> Mutate:
    return lambda schema: thing(schema).update(required=list(names))


def part(**values: Any) -> Mutate:
    return lambda schema: schema["$defs"]["Part"].update(values)


def becomes(name: str, **schema_of_it: Any) -> Mutate:
    return lambda schema: thing(schema)["properties"].update({name: schema_of_it})


ANY_SIZE = [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}, {"type": "string"}]

BREAKS_REQUESTS: dict[str, Mutate] = {
    "a field is removed": drops("tags"),
    "a field is required": requires("name", "part", "ratio"),
    "a new field is required": lambda s: (adds("new", type="string")(s), requires("name", "part", "new")(s)),
    "a field below is required": part(required=["id", "more"]),
    "a type is another": becomes("name", type="integer", minLength=1, maxLength=10),
    "a number must be whole": becomes("ratio", type="integer"),
    "null is refused": becomes("size", type="integer", minimum=0, maximum=9, default=None),
    "an enum value is refused": sets("colour", enum=["red"]),
    "an enum is a constant": lambda s: (field(s, "colour").clear(), field(s, "colour").update(const="red")),
    "text is limited to an enum": sets("name", enum=["a"]),
    "text must be longer": sets("name", minLength=2),
    "text must be shorter": sets("name", maxLength=9),
    "text has a pattern": sets("name", pattern="^a"),
    "text has a format": sets("name", format="uuid"),
    "a number is at most less": sets("size.anyOf.0", maximum=8),
    "a number has a limit": sets("ratio", minimum=0),
    "fewer items": sets("tags", maxItems=2),
    "items of another type": sets("tags", items={"type": "integer"}),
    "values of another type": sets("notes", additionalProperties={"type": "integer"}),
    "anything becomes something": becomes("anything", type="string"),
    "other fields are refused": part(additionalProperties=False),
    "a default changes": sets("size", default=1),
    "a default is gone": becomes("count", type="integer"),
    "a default in the description is another": becomes("count", type="integer", description="Default: `4`"),
    "null is no longer the default": lambda s: (field(s, "size").pop("default"), sets("size", default=1)(s)),
    "a field of a list's items is removed": part(properties={}),
}

GOOD_FOR_REQUESTS: dict[str, Mutate] = {
    "a new field": adds("new", type="string", default="x"),
    "a field is no longer required": requires("name"),
    "null is accepted": becomes("name", anyOf=[{"type": "string", "minLength": 1, "maxLength": 10}, {"type": "null"}]),
    "another type is accepted too": sets("size", anyOf=ANY_SIZE),
    "an enum value more": sets("colour", enum=["red", "green", "blue"]),
    "an enum becomes text": becomes("colour", type="string"),
    "looser bounds": lambda s: (sets("name", minLength=0, maxLength=99)(s), sets("size.anyOf.0", maximum=99)(s)),
    "no bounds": becomes("name", type="string"),
    "other fields are let pass": lambda s: thing(s).update(additionalProperties=True),
    "whole numbers and others": sets("size", anyOf=[{"type": "number", "minimum": 0}, {"type": "null"}]),
    "words for people": sets("name", description="its name", title="Name"),
    "a default that means absent is left out": lambda s: field(s, "size").pop("default"),
    "a default that its own pattern refuses is left out": lambda s: field(s, "word").pop("default"),
    "a default moves into the description": becomes("count", type="integer", description="How many. Default: `3`"),
    "another order": lambda s: thing(s).update(properties=dict(reversed(thing(s)["properties"].items()))),
}

BREAKS_ANSWERS: dict[str, Mutate] = {
    "a field is removed": drops("tags"),
    "a field may be missing": requires("name"),
    "a field below may be missing": part(required=[]),
    "a field below is removed": part(properties={}, required=[]),
    "a field may be null": becomes("name", anyOf=[{"type": "string"}, {"type": "null"}]),
    "a type is another": becomes("name", type="integer"),
    "a number may be broken": sets("size.anyOf.0", type="number"),
    "a type more": sets("size", anyOf=ANY_SIZE),
    "something becomes anything": becomes("name"),
    "items may be null": sets("tags", items={"anyOf": [{"type": "string"}, {"type": "null"}]}),
    "a time is no longer a time": becomes("at", type="string"),
    "values of another type": sets("notes", additionalProperties={"type": "integer"}),
}

GOOD_FOR_ANSWERS: dict[str, Mutate] = {
    "a new field": adds("new", type="string"),
    "a new field that is always there": lambda s: (adds("new")(s), requires("name", "part", "new")(s)),
    "a field is always there": requires("name", "part", "ratio"),
    "null is never sent": becomes("size", type="integer", minimum=0, maximum=9),
    "an enum value more": sets("colour", enum=["red", "green", "blue"]),
    "an enum value less": sets("colour", enum=["red"]),
    "whole numbers only": becomes("ratio", type="integer"),
    "anything becomes something": becomes("anything", type="string"),
    "a new field below": part(properties={"id": {"type": "string"}, "more": {}}),
}


def mutated(document: Json, mutate: Mutate) -> Json:
    changed = deepcopy(document)
    mutate(changed)
    assert changed != document or mutate in (GOOD_FOR_REQUESTS["another order"],)
    return changed


@pytest.mark.parametrize("mutate", BREAKS_REQUESTS.values(), ids=BREAKS_REQUESTS)
def test_change_that_refuses_a_valid_request_is_found(mutate: Mutate) -> None:
    assert schema_breaks(THING, mutated(THING, mutate), "accepts")


@pytest.mark.parametrize("mutate", GOOD_FOR_REQUESTS.values(), ids=GOOD_FOR_REQUESTS)
def test_change_that_accepts_more_requests_is_additive(mutate: Mutate) -> None:
    assert schema_breaks(THING, mutated(THING, mutate), "accepts") == []


@pytest.mark.parametrize("mutate", BREAKS_ANSWERS.values(), ids=BREAKS_ANSWERS)
def test_change_that_breaks_a_reader_of_answers_is_found(mutate: Mutate) -> None:
    assert schema_breaks(THING, mutated(THING, mutate), "sends")


@pytest.mark.parametrize("mutate", GOOD_FOR_ANSWERS.values(), ids=GOOD_FOR_ANSWERS)
def test_change_that_adds_to_answers_is_additive(mutate: Mutate) -> None:
    assert schema_breaks(THING, mutated(THING, mutate), "sends") == []


def test_recursive_schema_can_be_compared() -> None:
    tree: Json = {"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}}}}}
    assert schema_breaks(tree, deepcopy(tree), "accepts") == []
