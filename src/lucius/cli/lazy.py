"""Answers `--help` fast: a command's module is imported only when that command is invoked.

Help is plain text in Typer's own format. Typer's rich help and its conversion of values take longer to import than
everything else that the help of a command needs.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from msgspec import Struct
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

HELP = ("-h", "--help")


class LazyCommand(Struct, frozen=True):
    """A command that is listed without being imported: `target` is `module:attribute`, a function or a Typer."""

    name: str
    target: str
    panel: str
    help: str

    def load(self) -> TyperCommand | TyperGroup:
        module, _, attribute = self.target.partition(":")
        found = getattr(import_module(module), attribute)
        loaded: Any
        if isinstance(found, typer.Typer):
            found.rich_markup_mode = None
            found.info.cls = PlainGroup
            loaded = get_group(found)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(self.name)(found)
            loaded = get_command(alone)
        loaded.name = self.name
        return loaded  # type: ignore[no-any-return]


class PlainGroup(TyperGroup):
    """A group whose list of commands has the whole first paragraph of each command's help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_paragraph(command.help)) for name, command in self.commands.items()])


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


class LazyGroup(TyperGroup):
    """A group whose commands are listed from a table; only the one that is invoked is imported."""

    table: Sequence[LazyCommand] = ()

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._lazy = {command.name: command for command in self.table}
        for command in self.table:
            self.add_command(TyperCommand(command.name, help=command.help, rich_help_panel=command.panel))

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments; help is given before any value is converted."""
        if any(word in HELP for word in args):
            told = self._find_help(args, info_name)
            if told is not None:
                typer.echo(told)
                raise typer.Exit
        return super().make_context(info_name, args, parent, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.load(name) or command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands below the names of their panels."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for command in self.table:
            panels.setdefault(command.panel, []).append((command.name, command.help))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def load(self, name: str | None) -> Any:
        """Return the command of this name, imported; None if there is none."""
        if name in self._lazy:
            self.commands[name] = self._lazy.pop(name).load()
        return self.commands.get(name) if name else None

    def _find_help(self, args: Sequence[str], name: str | None) -> str | None:
        """Return the help that the arguments ask for, or None if they ask for something else or are wrong."""
        command: Any = self
        context = self.context_class(self, info_name=name, resilient_parsing=True, **self.context_settings)
        while command is not None:
            given, rest, _ = command.make_parser(context).parse_args(args=list(args))
            if any(param.is_eager and param.name in given for param in command.params):
                return None
            if "help" in given:
                return str(command.get_help(context))
            if not rest or not isinstance(command, TyperGroup):
                return None
            word, *args = rest
            command = self.load(word) if command is self else command.commands.get(word)
            if command is not None:
                settings = {"resilient_parsing": True, **command.context_settings}
                context = command.context_class(command, info_name=word, parent=context, **settings)
        return None
