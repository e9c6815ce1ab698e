"""Write docs/reference/cli.md from the help of every command; with --check, report whether it is stale."""

import sys
from collections.abc import Iterator
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

from lucius.cli.lazy import LazyGroup
from lucius.cli.main import app
from scripts.pages import keep

INTRODUCTION = """\
<!-- Written by scripts/cli_reference.py from the help of each command. Run the script to change it. -->

# Command line reference

`lucius COMMAND --help` prints the same. [The command line](../how-to/cli.md) shows the commands at work, and lists the
exit codes."""

WIDTH = 100


def page() -> str:
    sections = [f"## {title}\n\n```text\n{text}\n```" for title, text in _helps(get_command(app), ("lucius",), None)]
    return "\n\n".join((INTRODUCTION, *sections, ""))[:-1]


def _helps(command: Any, names: tuple[str, ...], parent: Any) -> Iterator[tuple[str, str]]:
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = command.context_class(command, info_name=names[-1], parent=parent, **settings)
    yield " ".join(names), command.get_help(context)
    if isinstance(command, TyperGroup):
        for name in command.commands:
            child = command.load(name) if isinstance(command, LazyGroup) else command.commands[name]
            yield from _helps(child, (*names, name), context)


if __name__ == "__main__":
    sys.exit(keep("reference/cli.md", "cli_reference", page))
