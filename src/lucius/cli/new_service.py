"""`lucius new-service`: a project to fork."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lucius import __version__
from lucius.cli import render
from lucius.cli.errors import Misused, guarded
from lucius.scaffold import BadName, Names, Occupied, names_for, write_project


def new_service(
    name: Annotated[str, typer.Argument(help="The service's name, as in invoice-reader")],
    step_type: Annotated[
        str | None, typer.Option(help="What its steps are called in protocols; the name in capitals if absent")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Where the project goes; a new folder of that name if absent")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty")] = False,
) -> None:
    """Make a platform service: a project with tests, protocol and Dockerfile, that passes the conformance kit."""
    names, target = guarded(lambda: _make(name, step_type, folder, force))
    console = render.out()
    console.print(f"Made {target}: the work goes into src/{names.package}/service.py", soft_wrap=True, highlight=False)
    for line in (f"cd {shlex.quote(str(target))}", "make setup test", "LUCIUS_API_KEY=… make run"):
        console.print(f"  {line}", soft_wrap=True, highlight=False)


def _make(name: str, step_type: str | None, folder: Path | None, force: bool) -> tuple[Names, Path]:
    """Raises Misused."""
    target = folder or Path(name)
    try:
        names = names_for(name, step_type, __version__)
        write_project(names, target, force=force)
    except (BadName, Occupied) as error:
        raise Misused(str(error)) from None
    except OSError as error:
        raise Misused(f"can't write {error.filename or target}: {error.strerror}") from None
    return names, target
