import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.http.secrets import Filling
from lucius.core.model.tools import ToolError, Tools

TOOLS = CelTools()
SECRET = "a-secret-value"

VALUES: dict[str, Any] = {
    "input": {
        "count": 3,
        "ratio": 2.5,
        "whole": 2.0,
        "large": 2**62,
        "name": "Grüße",
        "none": None,
        "yes": True,
        "tags": ["a", "b"],
        "pages": [{"no": n, "good": n % 2 == 0, "text": "x" * 20} for n in range(6)],
        "due": "2030-01-31T12:00:00Z",
        "secret": SECRET,
        "any.key": 7,
        "thousand": list(range(1000)),
    },
    "job": {"id": "job-1", "run_no": 1},
    "steps": {
        "ocr": {"status": "SUCCEEDED", "result": {"pages": 6, "confidence": 0.75}},
        "check-it": {"status": "FAILED_FINAL", "result": None},
    },
}

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))  # a lone surrogate is not text
scalars = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | texts
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars | st.integers(-(2**63), 2**63 - 1),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner),
    max_leaves=20,
)


def evaluate(expression: str) -> Any:
    return TOOLS.evaluate(expression, VALUES)


def refusal(expression: str, values: dict[str, Any] = VALUES) -> str:
    with pytest.raises(ToolError) as refused:
        TOOLS.evaluate(expression, values)
    message = str(refused.value)
    assert "\n" not in message
    assert SECRET not in message
    return message


def same(one: Any, other: Any) -> bool:
    """Return True if equal and of the same types throughout: 1 is neither 1.0 nor true."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def test_cel_tools_implement_the_tools_port() -> None:
    tools: Tools = TOOLS
    assert tools.names("input.count") == {"input"}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("input.count", 3),
        ("input.count + 1", 4),
        ("input.ratio * 2.0", 5.0),
        ("input.whole", 2.0),
        ("input.whole + 0.0", 2.0),
        ("input.large + 1", 2**62 + 1),
        ("input.count > 2 && steps.ocr.status == 'SUCCEEDED'", True),
        ("input.count == 3.0", True),
        ("input.name.startsWith('Gr') && input.name.size() == 5", True),
        ("input.name.upperAscii()", "GRüßE"),
        ("input.none == null", True),
        ("has(input.count) && !has(input.nope)", True),
        ("input.?nope.orValue('else')", "else"),
        ("input[?'count'].orValue(0)", 3),
        ("input['any.key']", 7),
        ("steps['check-it'].status", "FAILED_FINAL"),
        ("input.pages.filter(p, p.good).map(p, p.no)", [0, 2, 4]),
        ("input.pages.exists(p, p.no == 5)", True),
        ("input.pages.all(p, p.no < 5)", False),
        ("input.pages.exists_one(p, p.no == 1)", True),
        ("input.tags.join('-')", "a-b"),
        ("'a,b'.split(',')", ["a", "b"]),
        ("'x' in input.tags", False),
        ("input.tags + ['c']", ["a", "b", "c"]),
        ("{'id': job.id, 'n': [1, 2.0, null, true]}", {"id": "job-1", "n": [1, 2.0, None, True]}),
        ("input.yes ? 1 : 2", 1),
        ("input.nope == 1 || input.yes", True),
        ("timestamp(input.due) > timestamp('2020-01-01T00:00:00Z')", True),
        ("timestamp(input.due) + duration('90m')", "2030-01-31T13:30:00Z"),
        ("timestamp('2030-01-31T12:00:00.25+02:00')", "2030-01-31T10:00:00.250000Z"),
        ("duration('90m')", "5400s"),
        ("duration('-1500ms')", "-1.5s"),
        ("duration('1ns')", "0.000000001s"),
        ("duration('-1ns')", "-0.000000001s"),
        ("duration('1h0.000000001s')", "3600.000000001s"),
        ("duration('1h2m3s4ms5us6ns')", "3723.004005006s"),
        ("duration('0s')", "0s"),
        ("duration('300000h') + duration('1ns')", "1080000000.000000001s"),
        ("timestamp('2030-01-31T12:00:00.123456789Z')", "2030-01-31T12:00:00.123456789Z"),
        ("timestamp('2030-01-31T12:00:00Z') + duration('10ns')", "2030-01-31T12:00:00.000000010Z"),
        ("timestamp('1969-12-31T23:59:59.999999999Z')", "1969-12-31T23:59:59.999999999Z"),
        ("timestamp('0999-01-01T00:00:00.000000001Z')", "0999-01-01T00:00:00.000000001Z"),
        ("timestamp('9999-12-31T23:59:59.999999999Z')", "9999-12-31T23:59:59.999999999Z"),
        (
            "timestamp('2030-01-31T12:00:00.000000002Z') - timestamp('2030-01-31T12:00:00Z')",
            "0.000000002s",
        ),
        ("{'a': [timestamp('2030-01-31T12:00:00.000000001Z')]}", {"a": ["2030-01-31T12:00:00.000000001Z"]}),
        ("type(input.count) == int", True),
        ("math.greatest(input.count, 5)", 5),
        ("urlEncode(input.name + '/?&')", "Gr%C3%BC%C3%9Fe%2F%3F%26"),
        ("[1].map(input, input + 1)", [2]),
        ("input.pages[1].no", 1),
        ("18446744073709551615u", 2**64 - 1),
        ("input.thousand.filter(n, n % 2 == 0).size()", 500),
    ],
)
def test_an_expression_has_a_value(expression: str, value: Any) -> None:
    assert same(evaluate(expression), value)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("input.nope", "there is no nope: input.nope"),
        ("input.nope + 1", "there is no nope: input.nope + 1"),
        ("steps.nope.status", "there is no nope"),
        ("input.count.nope", "nope is read of something that is not an object"),
        ("input.count.nope == 1", "a member is read of something that is not an object"),
        ("input.tags[2]", "an index is outside of its list"),
        ("input[input.secret]", "a key is not there"),
        ("int(input.secret)", "a text that is no integer"),
        ("timestamp(input.secret)", "a text is no timestamp"),
        ("duration(input.secret)", "a text is no duration"),
        ("bool(input.secret)", "can't be converted"),
        ("input.name.matches(input.secret + '(')", "a regular expression is malformed"),
        ("input.secret > 1", "a type that it can't take"),
        ("input.secret ? 1 : 2", "neither true nor false"),
        ("input.count / 0", "a division by zero"),
        ("input.large * 4", "an integer gets too large"),
        ("1e308 * 10.0", "a number is infinite"),
        ("b'a'", "no JSON but of the type bytes"),
        ("type(1)", "no JSON but of the type type"),
        ("{1: 2}", "the keys of a map must be text"),
        ("{'a': 1, 'a': 2}", "the same key twice"),
        ("input.?nope", "orValue"),
        ("[input.?nope]", "orValue"),
        ("item + 1", "there is no item here"),
        ("'%s %s'.format([input.secret])", "more placeholders than values"),
        ("input.secret.substring(90)", "can't be evaluated"),
    ],
)
def test_a_value_that_can_not_be_found_is_an_error_that_shows_no_values(expression: str, reason: str) -> None:
    assert reason in refusal(expression)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "mismatched input"),
        ("input.", "(column 7): input."),
        ("input.count = 3", "(column 13)"),
        ("1 +\n  +", "line 2, column 3"),
        ("nope(1)", "undeclared reference to 'nope' (column 5)"),
        ("input.count.nope()", "undeclared reference to 'nope'"),
        ("urlEncode(1)", "found no matching overload for 'urlEncode'"),
        ("'a' + 1", "found no matching overload for '_+_' applied to '(string, int)'"),
        ("has(input)", "has() argument must be a field selection"),
        ("(" * 40 + "1" + ")" * 40, "nested too deeply"),
        ("1" + " + 1" * 40, "nested too deeply"),
        ("'" + "x" * 4096 + "'", "longer than 4,096 characters"),
        ("[1].map(a, [1].map(b, [1].map(c, [1].map(d, [1].map(e, e)))))", "more than 4 loops inside each other"),
        ("'\ud800'", "no CEL expression"),
        ("1\0 + nonsense", "a zero character"),
    ],
)
def test_expression_that_cannot_be_compiled_is_refused_with_position_and_reason(expression: str, reason: str) -> None:
    assert reason in refusal(expression)
    with pytest.raises(ToolError):
        TOOLS.names(expression)


def test_integer_too_large_for_the_library_is_an_error_only_if_used() -> None:
    values = {"input": {"huge": 2**70, "small": 1}}
    assert TOOLS.evaluate("input.small + 1", values) == 2
    assert TOOLS.evaluate("input.huge", values) == 2**70
    message = refusal("input.huge + 1", values)
    assert "an integer is too large" in message
    assert str(2**70) not in message


def test_zero_character_in_a_used_value_is_refused_instead_of_truncated() -> None:
    for value in ("a\0b", ["\0"], {"a\0": 1}):
        assert "a zero character" in refusal("input.v == 'a'", {"input": {"v": value, "w": 1}})
        assert TOOLS.evaluate("input.v", {"input": {"v": value}}) == value
        assert TOOLS.evaluate("input.w + 1", {"input": {"v": value, "w": 1}}) == 2


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("input.a.b > 1", {"input"}),
        ("steps.ocr.result.x == steps['check-it'].status", {"steps.ocr", "steps.check-it"}),
        ("has(steps.a) && steps.?b.orValue(1) == 1 && steps[?'c'].hasValue()", {"steps.a", "steps.b", "steps.c"}),
        ("size(steps)", {"steps"}),
        ("steps[input.which]", {"steps", "input"}),
        ("[1].exists(x, x > item_index)", {"item_index"}),
        ("[job].map(input, input.id)", {"job"}),
        ("input.l.map(x, x.a).filter(y, y in item)", {"input", "item"}),
        ("type(job.id) == string && math.ceil(response.x) > 1.0", {"job", "response"}),
        ("strings.quote(input.a)", {"input"}),
        ("optional.of(item).hasValue()", {"item"}),
        (".input.a", {"input"}),
        ("inptu.a + nope", {"inptu", "nope"}),
        ("{'k': item, input.key: [job]}", {"item", "input", "job"}),
        ("steps.`check-it`.result", {"steps.check-it"}),
        ("input.?a.optMap(x, x + item)", {"input", "item"}),
        ("1 + 1", set()),
    ],
)
def test_names_are_the_outer_names_read_by_an_expression(expression: str, names: set[str]) -> None:
    assert TOOLS.names(expression) == names


BOMBS = {
    "a text that doubles": "['xxxxxxxxxx']" + ".map(a,a+a)" * 25,
    "a list that doubles": "[[1]]" + ".map(a,[a,a])" * 25,
    "a list that doubles, compared": "[[1]]" + ".map(a,[a,a])" * 25 + ".map(a,a==a)",
    "replacing characters by texts": "input.name" + f".replace('x','{'x' * 100}')" * 5,
    "replacing characters by all": "input.long.replace('x', input.long)",
    "a long text for every item": "input.thousand.map(n, input.long + 'x').size()",
    "a long text for every item, by reference": "input.thousand.map(n, input.long)",
    "a list of lists": "input.thousand.map(n, input.thousand)",
    "loops in loops": "input.thousand.map(a, input.thousand.map(b, a * b))",
    "searches in loops": "input.thousand.exists(a, input.thousand.exists(b, a + b < 0))",
    "a long list": "input.myriad.map(n, n)",
    "a list of characters": "input.long.split('').map(c, c)",
    "patterns": r"input.thousand.exists(n, string(n).matches('(\\pL{1,50}\\s?){1,15}Z'))",
    "URLs": "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(n, urlEncode(input.long)).size()",
    "formats": "input.thousand.map(n, '%.999f'.format([input.ratio])).map(a, a + a + a + a).join('').size()",
    "glue": "input.thousand.map(n, 'x').join(input.long).size()",
    "long lists in a loop": "[1, 2, 3, 4].map(n, input.many.map(m, m)).size()",
    "sizes of a long text": "input.many.all(n, input.huge.size() > 1)",
    "pieces of a text, again and again": "input.many.all(n, input.name4k.split('').size() > 0)",
    "pieces of a huge text": "input.huge.split('')",
    "more passes than there may be": "input.endless.exists(n, n < 0)",
}
LARGE = {
    "input": {
        **VALUES["input"],
        "long": "x" * 200_000,
        "huge": "x" * 900_000,
        "name4k": "x" * 4_000,
        "many": [0] * 2_000,
        "myriad": [0] * 9_000,
        "endless": [0] * 20_000,
        "hundred": list(range(100)),
        "documents": [{"no": n, "text": "x" * 2_500} for n in range(90)],
    }
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_expression_with_excessive_work_is_refused_quickly(bomb: str) -> None:
    began = time.perf_counter()
    message = refusal(bomb, LARGE)
    assert time.perf_counter() - began < 5
    assert "too much work" in message or "too large" in message or "10,000 items" in message


@pytest.mark.parametrize("bomb", [text for name, text in BOMBS.items() if "sizes" in name or "pieces" in name])
def test_text_sizes_and_substrings_count_as_work(bomb: str) -> None:
    assert "too much work" in refusal(bomb, LARGE)


SEARCHED = {
    "input": {
        "text": "a" * 300_000,
        "needle": "a" * 100_000 + "b",
        "short": "aab",
        "name": "a" * 60,
        "pattern": "^[a-z0-9-]+$",
        "bomb": "(a?){900}b",
        "unicode": "é" * 20_000,
    }
}


@pytest.mark.parametrize(
    "expression",
    [
        "input.text.matches('(a?){900}b')",
        "input.text.matches(input.bomb)",
        "input.text.matches('(' + input.short + '?){900}b')",
        r"input.unicode.matches('(\\pL?){100}c')",
        "input.text.contains(input.needle)",
        "input.text.indexOf(input.needle) > 0",
        "input.text.lastIndexOf(input.needle) > 0",
        "input.text.replace(input.needle, '').size() > 0",
        "input.text.split(input.needle).size() > 0",
    ],
)
def test_search_for_a_large_text_or_pattern_is_refused(expression: str) -> None:
    began = time.perf_counter()
    assert "too much work" in refusal(expression, SEARCHED)
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    "expression",
    [
        "input.text.matches('^[a-z0-9-]+$')",
        "input.text.matches(input.pattern)",
        "input.text.matches('[0-9]{4}-[0-9]{2}-[0-9]{2}')",
        r"input.text.matches('^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\\.[a-zA-Z]{2,}$')",
        r"input.unicode.matches('^\\pL+$')",
        "input.name.matches('(a?){900}b')",
        "input.text.contains(input.short)",
        "input.text.contains(input.name) && input.text.indexOf(input.name) == 0",
    ],
)
def test_ordinary_search_in_a_large_text_is_evaluated(expression: str) -> None:
    assert TOOLS.evaluate(expression, SEARCHED) in (True, False)


@pytest.mark.parametrize(
    "expression",
    [
        "input.myriad.exists(n, n > 0)",
        "input.myriad.all(n, n in [0, 1])",
        "size(input.myriad) == 9000 && input.long.contains('x')",
        "input.thousand.filter(n, n in input.thousand).size() == 1000",
        "input.thousand.map(n, {'n': n, 'name': input.name, 'more': [n, n + 1]}).size() == 1000",
        "input.thousand.filter(n, string(n).matches('^[0-9]{3}$')).size() == 900",
        "(input.long + input.long).size() == 400000",
        "input.hundred.map(n, input.documents.filter(d, d.no * 2 == n).size()).exists(n, n == 1)",
        "input.thousand.map(n, string(n)).join(',').size() == 3889",
        "input.pages.map(p, p.text + '/' + string(p.no)).exists(t, t.endsWith('/5'))",
    ],
)
def test_reasonable_expression_over_large_values_is_evaluated(expression: str) -> None:
    assert TOOLS.evaluate(expression, LARGE) in (True, False)


def test_value_nested_too_deeply_is_refused() -> None:
    deep: Any = 1
    for _ in range(50_000):
        deep = [deep]
    assert "nested deeper than 100 levels" in refusal("size(input.deep)", {"input": {"deep": deep}})


LINKS = [
    ".map(a, a + a)",
    ".map(a, [a, a])",
    ".filter(a, a == a)",
    ".map(a, input.thousand)",
    " + input.tags",
    ".map(a, string(a) + input.name)",
    ".map(a, input.tags.map(b, [a, b]))",
    ".map(a, {'k': a})",
    ".map(a, string(a).replace('a', input.name))",
    ".filter(a, a in input.thousand)",
]


@settings(max_examples=60, deadline=2000)
@given(
    st.sampled_from(["input.thousand", "input.tags", "[input]", "['x']"]), st.lists(st.sampled_from(LINKS), max_size=8)
)
def test_any_chain_of_loops_is_evaluated_or_refused_quickly(start: str, chain: list[str]) -> None:
    with contextlib.suppress(ToolError):
        TOOLS.evaluate(start + "".join(chain), VALUES)


@given(json_values)
def test_json_value_is_returned_unchanged(value: Any) -> None:
    assert same(TOOLS.evaluate("[input.v][0]", {"input": {"v": value}}), value)
    assert same(TOOLS.evaluate("input.v", {"input": {"v": value}}), value)


@given(st.text() | st.text("input.()[]{}'\"+$mapx,:?&|=<>0123456789 "))
def test_random_expression_raises_only_tool_errors(text: str) -> None:
    with contextlib.suppress(ToolError):
        TOOLS.names(text)
    with contextlib.suppress(ToolError):
        TOOLS.evaluate(text, VALUES)


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("plain", "plain"),
        ("", ""),
        ("${input.count}", 3),
        (" ${input.count}", " 3"),
        ("${input.tags}", ["a", "b"]),
        ("${input.count}/${input.whole}/${input.yes}/${input.name}", "3/2.0/true/Grüße"),
        ("tags: ${input.tags} ${steps.ocr.result}", 'tags: ["a","b"] {"pages":6,"confidence":0.75}'),
        ("${'}'}${\"{\"}${'''a'}'''}", "}{a'}"),
        ("${{'a': {'b': 1}}}", {"a": {"b": 1}}),
        ("${'\\'}'}!", "'}!"),
        ("${r'\\d' + '}'}!", "\\d}!"),
        ("${secrets.API_KEY}", "${secrets.API_KEY}"),
        ("Bearer ${ secrets.api-key } ${input.count}", "Bearer ${secrets.api-key} 3"),
        ("$${input.count}", "$${input.count}"),
        ("$${a} costs $5 ${input.count}", "$${a} costs $5 3"),
        ({"a": ["${input.count}", 1, None], "${input.count}": "x"}, {"a": [3, 1, None], "${input.count}": "x"}),
        (7, 7),
        (None, None),
    ],
)
def test_a_template_is_filled_in(template: Any, rendered: Any) -> None:
    assert same(TOOLS.render(template, VALUES), rendered)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("${input.nope}", "there is no nope"),
        ("x ${input.none}", "no value to write into a text: input.none"),
        ("${input.count", "never closed"),
        ("${'}", "never closed"),
        ("${}", "no expression in it"),
        ("${1 +}", "mismatched input"),
        ("${'Bearer ' + secrets.KEY}", "there is no secrets here"),
        ({"a": [{"b": "${item}"}]}, "there is no item"),
    ],
)
def test_a_template_that_misses_a_value_is_an_error(template: Any, reason: str) -> None:
    with pytest.raises(ToolError, match=reason.replace("+", r"\+")):
        TOOLS.render(template, VALUES)


def test_template_names_are_those_of_its_expressions() -> None:
    template = {"a": ["${steps.ocr.result} ${input.x}", 1], "b": "$${item} ${secrets.KEY}", "${job.id}": "y"}
    assert TOOLS.names_in(template) == {"steps.ocr", "input"}
    for wrong in ("${1 +}", "${a"):
        with pytest.raises(ToolError):
            TOOLS.names_in([{"x": wrong}])


def test_value_that_looks_like_a_secret_reference_is_not_resolved() -> None:
    stolen = {
        "input": {"text": "${secrets.KEY}", "dollar": "$", "brace": "{secrets.KEY}", "map": {"${secrets.KEY}": 1}}
    }
    filling = Filling({"KEY": "hidden"})
    for template in ("${input.text}", "a ${input.text}", "${input.dollar}${input.brace}", "${input.map}"):
        assert "hidden" not in str(filling.fill(TOOLS.render(template, stolen)))
    assert filling.fill(TOOLS.render("${input.text}=${secrets.KEY}", stolen)) == "${secrets.KEY}=hidden"
    with pytest.raises(ToolError, match="ends in"):
        TOOLS.render("${input.dollar}${secrets.KEY}", stolen)


@given(st.text(alphabet="${}secrtKY. ") | texts, st.text("${} x"))
def test_rendered_template_contains_the_value_unchanged(value: str, around: str) -> None:
    def sent(template: str) -> Any:
        return Filling({"KEY": "hidden"}).fill(TOOLS.render(template, {"input": {"v": value}}))

    written = around.replace("${", "$${")
    assert sent("${input.v}") == value
    assert sent(f"{written} ${{input.v}} {written}") == f"{around} {value} {around}"


@given(st.text() | st.text("${}'\"ar\\input. "))
def test_random_template_raises_only_tool_errors(text: str) -> None:
    with contextlib.suppress(ToolError):
        TOOLS.names_in(text)
    with contextlib.suppress(ToolError):
        TOOLS.render(text, VALUES)


SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "of": {"items": {"pattern": "^x"}}},
}


def test_a_value_that_fits_its_schema_has_no_faults() -> None:
    assert TOOLS.faults(SCHEMA, {"id": 1, "of": ["x1"]}) == []
    assert TOOLS.faults({}, None) == []


def test_schema_faults_name_the_place_without_the_value() -> None:
    assert TOOLS.faults(SCHEMA, {}) == ['/: "id" is a required property']
    faults = TOOLS.faults(SCHEMA, {"id": SECRET, "of": [SECRET] * 20})
    assert faults[0] == '/id: the value is not of type "integer"'
    assert len(faults) == 5
    assert not any(SECRET in fault for fault in faults)


def test_schema_with_an_external_reference_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ToolError, match="is not a JSON Schema"):
        TOOLS.faults({"$ref": f"file://{tmp_path}/other.json"}, 1)


@pytest.mark.parametrize("schema", [{"type": "nope"}, {"$ref": "https://example.com/x"}, {"pattern": "("}])
def test_invalid_schema_is_an_error(schema: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="is not a JSON Schema") as refused:
        TOOLS.faults(schema, 1)
    assert "\n" not in str(refused.value)


def test_validators_are_cached_per_schema() -> None:
    tools = CelTools()
    for number in range(600):
        assert tools.faults({"const": number}, number) == []
        assert tools.faults({"const": number}, number + 1)
    assert tools.cached_schema_count <= 256
