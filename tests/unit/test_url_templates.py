"""Values in the URL of a call stay values: they never select another host, path or parameter."""

from typing import Any

import pytest

from lucius.adapters.expressions.expressions import CelTools
from lucius.core.model.tools import ToolError

TOOLS = CelTools()
BASE = "https://api.example.com/v1"


def render(template: str, value: Any) -> str:
    return TOOLS.render_url(template, {"input": {"v": value}})


@pytest.mark.parametrize(
    ("template", "value", "expected"),
    [
        ("/docs/${input.v}/x", "plain-1_~.txt", "/docs/plain-1_~.txt/x"),
        ("/docs/${input.v}/x", "a/b?c#d", "/docs/a%2Fb%3Fc%23d/x"),
        ("/docs/${input.v}", "%41", "/docs/%2541"),
        ("/docs/${input.v}", "Grüße a", "/docs/Gr%C3%BC%C3%9Fe%20a"),
        ("/docs/${input.v}:refund", 17, "/docs/17:refund"),
        ("/docs?name=${input.v}&x=1", "a&admin=1#f", "/docs?name=a%26admin%3D1%23f&x=1"),
        ("/docs?path=${input.v}", "../../a", "/docs?path=..%2F..%2Fa"),
        ("/docs?name=${input.v}", "", "/docs?name="),
        ("/docs#${input.v}", "a b#c", "/docs#a%20b%23c"),
        ("/docs/${urlEncode(input.v)}", "a/b", "/docs/a%2Fb"),
        ("/docs/${input.v}", "${secrets.KEY}", "/docs/%24%7Bsecrets.KEY%7D"),
        ("/docs/${secrets.KEY}/${input.v}", "a", "/docs/${secrets.KEY}/a"),
        ("/docs/$${x}/${input.v}", "a", "/docs/$${x}/a"),
    ],
)
def test_value_is_encoded_for_its_position(template: str, value: Any, expected: str) -> None:
    assert TOOLS.url_fault(BASE + template) is None
    assert render(BASE + template, value) == BASE + expected


def test_secret_can_be_the_beginning_of_a_url() -> None:
    assert render("${secrets.BASE}/docs/${input.v}", "a/b") == "${secrets.BASE}/docs/a%2Fb"
    with pytest.raises(ToolError, match="write scheme and host"):
        render("${secrets.BASE}${input.v}", "/a")
    with pytest.raises(ToolError, match=r"can't have \. or \.\."):
        render("${secrets.BASE}/docs/${input.v}", "../a")


@pytest.mark.parametrize(
    "value",
    [
        *(
            "..",
            ".",
            "../../../admin/users",
            "..\\..\\admin",
            "%2e%2e",
            "%2E.",
            "%252e%252e/x",
            "a/../b",
            "..;x",
            " .. ",
        ),
        *("..?", "..#", "..%3Fa", "..%23", "..%3b", "a;..", ".\t.", "..%00", ".%00.", "..%09", "..%0a", "\x01.."),
    ],
)
def test_dot_segment_is_refused_however_it_is_encoded(value: str) -> None:
    with pytest.raises(ToolError, match=r"can't have \. or \.\."):
        render(f"{BASE}/docs/${{input.v}}/transitions", value)


@pytest.mark.parametrize(("template", "value"), [("/docs/.${input.v}/x", "."), ("/docs/%2e${input.v}", "%2E")])
def test_dot_segment_made_of_text_and_value_is_refused(template: str, value: str) -> None:
    with pytest.raises(ToolError, match=r"can't have \. or \.\."):
        render(BASE + template, value)


@pytest.mark.parametrize(
    "template", ["/docs/${input.v}", "/docs/${input.v}/x", "/docs/${input.v}?a=b", "/docs/${input.v};v=1"]
)
def test_empty_path_segment_is_refused(template: str) -> None:
    with pytest.raises(ToolError, match="has no text for a segment"):
        render(BASE + template, "")


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ToolError, match="half a surrogate pair"):
        render(f"{BASE}/docs/${{input.v}}", "\ud800")


@pytest.mark.parametrize(
    "template",
    [
        "${input.v}",
        "${input.v}/docs",
        "https://${input.v}/docs",
        "https://${input.v}.example.com/docs",
        "https://example.com${input.v}",
        "https://example.com:${input.v}/docs",
        "https://${input.v}@example.com/docs",
        "${input.v}://example.com/docs",
        "/docs/${input.v}",
    ],
)
def test_value_in_scheme_or_host_is_refused(template: str) -> None:
    assert "write scheme and host into the protocol" in str(TOOLS.url_fault(template))
    with pytest.raises(ToolError, match="write scheme and host"):
        render(template, "x")


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (f"{BASE}/a/../b", "can't have . or .."),
        (f"{BASE}/a/%2e%2e/b", "can't have . or .."),
        (f"{BASE}\\a", "can't have a backslash"),
        (f"{BASE}/a?x=${{urlEncode(input.a) + '&y=' + urlEncode(input.b)}}", "leave urlEncode out"),
        (f"{BASE}/${{[input.a].map(x, urlEncode(x))[0]}}", "leave urlEncode out"),
    ],
)
def test_unusable_url_template_is_refused_at_validation(template: str, fault: str) -> None:
    assert fault in str(TOOLS.url_fault(template))
