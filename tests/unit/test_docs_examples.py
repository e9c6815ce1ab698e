"""Every code block of the documentation is run or parsed, except those whose language is `text`: they are no code."""

import ast
import configparser
import importlib
import itertools
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from lucius.adapters.config.file import read_config
from lucius.cli.main import app
from lucius.client import AsyncClient
from lucius.conformance.model import Report
from lucius.conformance.plugin import SETTINGS
from lucius.contract import Problem
from lucius.contract.callbacks import ResultCallback
from lucius.contract.commands import CommandEnvelope
from lucius.contract.views import ServiceBacklog, ServiceList
from lucius.worker import Service, StepContext, StepResult
from tests.support.docs_blocks import (
    FENCE,
    PAGES,
    ROOT,
    Block,
    Command,
    all_blocks,
    blocks_in,
    commands_in,
    commands_of,
)

NO_CODE = "text"
BLOCKS = [block for block in all_blocks() if block.language != NO_CODE]

CHECKED_BY = {
    ("docs/flows.md", "mermaid"): "tests/unit/test_docs_links.py",
    ("docs/how-to/protocols.md", "mermaid"): "tests/unit/test_docs_protocols.py",
    ("docs/how-to/protocols.md", "yaml"): "tests/unit/test_docs_protocols.py",
    ("docs/how-to/webhooks.md", "python"): "tests/unit/test_docs_webhooks.py",
    ("docs/operations.md", "acl"): "tests/e2e/test_redis_rights.py",
    ("docs/states.md", "mermaid"): "tests/integration/process/test_docs_states.py",
    ("docs/tutorial.md", "python"): "tests/e2e/test_docs_walkthroughs.py",
}
"""Tests that check all blocks of a page in a language."""

IDENTITY = {"jobId": "j", "stepId": "s", "tenant_id": "t", "attempt_no": 1, "lease_id": "l"}
ENVELOPE = {"tenant_id": "t", "request_type": "OCR", "input_ref": "i", "output_ref": "o", "payload": {}} | {
    "schema_version": "v1"
}
JSON: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "docs/errors.md": [(Problem, {})],
    "docs/how-to/conformance.md": [(Report, {})],
    "docs/how-to/service-with-curl.md": [(ResultCallback, IDENTITY), (ResultCallback, IDENTITY)],
    "docs/how-to/webhooks.md": [(CommandEnvelope, ENVELOPE), (dict[str, Any], {})],
    "docs/operations.md": [(ServiceBacklog, {}), (ServiceList, {})],
}
"""The type of each JSON block of a page, and the members that the page leaves out."""

ROUTES = [
    re.compile(re.sub(r"\{\w+\}", r"[^/:]+", path))
    for path in json.loads((ROOT / "schemas" / "openapi.json").read_text(encoding="utf-8"))["paths"]
]
VARIABLES = set(re.findall(r"LUCIUS_\w+", (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
OPTIONS_OF_PLUGIN = {f"--lucius-{setting.name.replace('_', '-')}" for setting in SETTINGS}
EXTERNAL = {".", "…", "cat", "cd", "cp", "echo", "git", "node", "npm", "npx", "openssl", "printf", "sha256sum"}
"""Programs of others, of whose arguments only paths are checked."""
PLACEHOLDERS = {"mysvc"}
TEMPORAL = (
    ROOT / "tests" / "temporal" / "test_docs_commands.py",
    ROOT / "tests" / "temporal" / "test_replay_recipe.py",
)
PATH = re.compile(r"(?:examples|docs|scripts|tests)/[\w./-]+")


def parse_lucius(words: list[str]) -> None:
    """Parse the arguments of `lucius`, without running the command."""
    command: Any = get_command(app)
    name: str | None = "lucius"
    context = None
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not isinstance(command, TyperGroup):
            return
        _, rest, _ = command.make_parser(context).parse_args(args=list(words))
        name, command, words = command.resolve_command(context, rest)


def check_command(command: Command) -> None:
    unknown = {name for name in command.variables if name.startswith("LUCIUS_")} - VARIABLES
    assert not unknown, f"no such setting: {unknown}"
    if not command.words:
        return
    program, *words = command.words
    for word in words:
        if PATH.fullmatch(word):
            assert (ROOT / word).exists(), f"{word} does not exist"
    if "/" in program:
        assert (ROOT / program).exists(), f"{program} does not exist"
    elif program not in EXTERNAL:
        PROGRAMS[program](words)


def check_lucius(words: list[str]) -> None:
    parse_lucius(words)
    if "--service-command" in words:
        for command in commands_of(words[words.index("--service-command") + 1]):
            check_command(command)


def check_python(words: list[str]) -> None:
    if words[0] == "-m":
        assert words[1] in PLACEHOLDERS or importlib.util.find_spec(words[1]), f"no module {words[1]}"
    else:
        assert words[0].endswith(".py")


def check_bash(words: list[str]) -> None:
    assert words[0] == "-c"
    for command in commands_of(words[1]):
        check_command(command)


def check_make(words: list[str]) -> None:
    unknown = {word for word in words if "=" not in word} - TARGETS
    assert not unknown, f"no target {unknown}"


def check_pytest(words: list[str]) -> None:
    unknown = {word for word in words if word.startswith("-")} - OPTIONS_OF_PLUGIN - {"-k", "-m", "-n"}
    assert not unknown, f"no option {unknown}"


def check_pip(words: list[str]) -> None:
    assert words[0] == "install"
    for word in words[1:]:
        if extras := re.fullmatch(r"lucius\[([\w,]+)\]", word):
            unknown = set(extras[1].split(",")) - EXTRAS
            assert not unknown, f"no extra {unknown}"
        else:
            assert f'name = "{word}"' in (ROOT / "uv.lock").read_text(), f"{word} is not used here"


def check_curl(words: list[str]) -> None:
    (url,) = [word for word in words if word.startswith("$") and word != "$LUCIUS_URL"]
    if not url.endswith("_URL"):  # else the directive names it
        path = re.sub(r"^\$\w+", "", url).replace("$", "")
        assert any(route.fullmatch(path) for route in ROUTES), f"no route {path}"
    if "-d" in words:
        json.loads(words[words.index("-d") + 1])


def check_temporal(words: list[str]) -> None:
    called = "temporal " + " ".join(words[: next(at for at, word in enumerate(words) if word.startswith("-"))])
    assert any(called in path.read_text() for path in TEMPORAL), f"no test runs {called}"


PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "bash": check_bash,
    "curl": check_curl,
    "lucius": check_lucius,
    "make": check_make,
    "pip": check_pip,
    "pytest": check_pytest,
    "python": check_python,
    "temporal": check_temporal,
}


def check_shell(block: Block) -> None:
    commands = commands_in(block)
    assert commands, "no command"
    for command in commands:
        check_command(command)


def check_python_block(block: Block) -> None:
    """Parse the block, and look up the names that it imports from Lucius and from the examples."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("lucius", "examples")):
            module = importlib.import_module(node.module or "")
            unknown = [name.name for name in node.names if not hasattr(module, name.name)]
            assert not unknown, f"no {unknown} in {node.module}"


def check_json(block: Block) -> None:
    among = [other for other in BLOCKS if (other.page, other.language) == (block.page, block.language)]
    kind, rest = JSON[block.page][among.index(block)]
    shown = json.loads(block.text)
    decoded = msgspec.to_builtins(msgspec.convert(rest | shown, kind))
    assert {name: decoded[name] for name in shown} == shown


def check_config(block: Block, folder: Path) -> None:
    path = folder / "lucius.yaml"
    digests = (f"{number:064x}" for number in itertools.count())
    path.write_text(re.sub("…", lambda _: f'"{next(digests)}"', block.text), encoding="utf-8")
    assert read_config(path)


def check_ini(block: Block) -> None:
    parser = configparser.ConfigParser()
    parser.read_string(block.text)
    assert set(parser["pytest"]) <= {f"lucius_{setting.name}" for setting in SETTINGS}


def check(block: Block, folder: Path) -> None:
    """Check the block. Raises AssertionError, KeyError or what its parser raises."""
    if (checked_by := CHECKED_BY.get((block.page, block.language))) is not None:
        assert Path(block.page).name in (ROOT / checked_by).read_text()
        return
    match block.language:
        case "sh" | "console":
            check_shell(block)
        case "python":
            check_python_block(block)
        case "json":
            check_json(block)
        case "yaml":
            check_config(block, folder)
        case "ini":
            check_ini(block)
        case other:
            raise AssertionError(f"no test checks {other or 'a block without a language'!r}: if no code, call it text")


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_code_block_is_correct(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    check(block, tmp_path)


WRONG = {
    "```\nlucius demo\n```": "a block without a language",
    "```rust\nfn main() {}\n```": "no test checks 'rust'",
    "```sh\nlucius jobs lst\n```": "No such command",
    "```sh\nlucius jobs list --nosuch\n```": "No such option",
    "```sh\nlucius explain\n```": "Missing parameter",
    "```console\n$ lucius jobs list --blocked-on nothing\nJOB\n```": "'nothing' is not one of",
    "```console\nno command\n```": "no command",
    "```sh\nLUCIUS_NO_SUCH_SETTING=1 lucius api\n```": "no such setting",
    "```sh\nlucius protocols validate examples/no_such.yaml\n```": "no_such.yaml does not exist",
    "```sh\necho $(lucius nosuch)\n```": "No such command",
    '```sh\nlucius conformance --service-command "python examples/no_such.py"\n```': "no_such.py does not exist",
    "```sh\nmake no-such-target\n```": "no target",
    "```sh\npip install 'lucius[nosuch]'\n```": "no extra",
    "```sh\npytest --lucius-nosuch 1\n```": "no option",
    "```sh\ncurl $BASE_URL/v1/nosuch\n```": "no route",
    "```sh\ntemporal workflow nosuch --workflow-id JOB\n```": "no test runs",
    "```sh\nunknown-program\n```": "unknown-program",
    "```sh\necho 'open\n```": "No closing quotation",
    "```python\ndef broken(:\n```": "invalid syntax",
    "```python\nfrom lucius.client import NoSuchClient\n```": "NoSuchClient",
    "```json\n{}\n```": "docs/page.md",
    "```yaml\nrefs: {nosuch: 1}\n```": "nosuch",
    "```ini\n[pytest]\nlucius_nosuch = 1\n```": "lucius_nosuch",
    "- item\n\n  ```sh\n  lucius nosuch\n  ```": "No such command",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_code_block_is_found(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (block,) = blocks_in("docs/page.md", text + "\n")
    with pytest.raises(Exception, match=WRONG[text]):
        check(block, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_in_sentences_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    prose = " ".join(FENCE.sub("", page.read_text(encoding="utf-8")).split())
    for line in sorted(set(re.findall(r"`(lucius [a-z][^`]*)`", prose))):
        for command in commands_of(line):
            try:
                check_command(command)
            except typer.BadParameter as error:
                if "Missing parameter" not in str(error):  # a sentence need not give every argument
                    raise


def block_of(page: str, containing: str) -> str:
    (found,) = [block.text for block in BLOCKS if block.page == page and containing in block.text]
    return found


def test_service_excerpt_is_taken_from_the_example() -> None:
    shown = block_of("docs/how-to/write-a-service.md", '@service.step("UPPER")').split("    ...\n")
    code = (ROOT / "examples" / "service_upper.py").read_text()
    assert len(shown) == 2
    assert all(part in code for part in shown)


def test_documented_guard_is_accepted_by_a_service() -> None:
    service = Service("pay")
    names: dict[str, Any] = {"service": service, "StepContext": StepContext, "StepResult": StepResult}
    names["Payment"] = msgspec.defstruct("Payment", [("amount", int)])
    names["bank"] = None
    exec(block_of("docs/how-to/write-a-service.md", "@service.guard"), names)
    assert names["was_paid"]


def test_documented_client_arguments_exist() -> None:
    names = {"AsyncClient": AsyncClient, "url": "http://127.0.0.1:1", "key": "k", "current_traceparent": lambda: None}
    assert eval(block_of("docs/how-to/python-client.md", "trace="), dict(names))


async def test_documented_unit_test_of_a_service_passes(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(block_of("docs/how-to/write-a-service.md", "run_step"), names)
    await names["test_capitals"](tmp_path)
