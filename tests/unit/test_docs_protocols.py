"""The docs page for protocol authors agrees with the examples and with the output of the tools."""

import re
import shlex
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from lucius.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "protocols.md").read_text()
EXAMPLES = [path.read_text() for path in sorted((ROOT / "examples" / "protocols").glob("*.yaml"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def bare(text: str) -> list[str]:
    """Return the lines without comments and empty lines."""
    lines = (re.sub(r"(^|\s+)# .*$", "", line).rstrip() for line in text.splitlines())
    return [line for line in lines if line]


def occurs(snippet: list[str], text: list[str]) -> bool:
    """Return True if the lines occur consecutively in the text, all indented by the same additional amount."""
    parts = (text[at : at + len(snippet)] for at in range(len(text)))
    return any(dedent("\n".join(part)) == "\n".join(snippet) for part in parts)


@pytest.mark.parametrize("snippet", blocks("yaml"), ids=lambda text: text.split("\n")[0].strip("- "))
def test_a_snippet_is_part_of_an_example(snippet: str) -> None:
    assert any(occurs(bare(snippet), bare(text)) for text in EXAMPLES)


def test_each_step_kind_has_a_chapter_with_a_snippet() -> None:
    chapters = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL))
    assert set(chapters) == {
        "task",
        "decision",
        "wait",
        "external_call",
        "notify",
        "human_approval",
        "parallel",
        "map",
    }
    assert all("```yaml" in text for text in chapters.values())


def test_diagram_on_the_page_is_the_output_of_the_tool() -> None:
    (shown,) = blocks("mermaid")
    path = str(ROOT / "examples" / "protocols" / "polling.yaml")
    assert CliRunner().invoke(app, ["protocols", "graph", path]).stdout == shown


def test_simulation_prints_the_output_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (shown,) = blocks("console")
    command, _, lines = shown.replace("\\\n", "").partition("\n")
    result = CliRunner().invoke(app, shlex.split(command.removeprefix("$ lucius ")))
    told = "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())
    assert [part for part in lines.split("[…]\n") if part not in told] == [], "what is left out is marked"


def test_every_option_of_simulate_is_explained() -> None:
    helped = CliRunner().invoke(app, ["simulate", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
    options = set(re.findall(r"--[a-z-]+", helped)) - {"--help"}
    assert {option for option in options if f"`{option}" not in PAGE} == set()
