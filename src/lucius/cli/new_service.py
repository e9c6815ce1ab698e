"""`lucius new-service`: writes the project of a new platform service."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lucius.cli import render
from lucius.cli.errors import Misused, guarded
from lucius.scaffold import BadName, Names, NoWheel, Occupied, names_for, write_project, write_wheel
from lucius.version import __version__


def new_service(
    name: Annotated[str, typer.Argument(help="Name of the service, for example invoice-reader")],
    step_type: Annotated[
        str | None, typer.Option(help="Step type in protocols; by default the name in capitals")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder of the project; by default a new one with the name")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty")] = False,
) -> None:
    """Create a project for a platform service, with tests, protocol and Dockerfile. It passes the conformance kit."""
    names, target = guarded(lambda: _make(name, step_type, folder, force))
    console = render.out()
    console.print(
        f"Created {target}; implement the work in src/{names.package}/service.py", soft_wrap=True, highlight=False
    )
    for line in (
        f"cd {shlex.quote(str(target))}",
        "make setup test",
        "make run   # beside `lucius dev` in the same folder",
    ):
        console.print(f"  {line}", soft_wrap=True, highlight=False)


def _make(name: str, step_type: str | None, folder: Path | None, force: bool) -> tuple[Names, Path]:
    """Write the project; return its names and folder. Raises Misused."""
    target = folder or Path(name)
    try:
        names = names_for(name, step_type, __version__)
        write_project(names, target, force=force)
        write_wheel(target / "wheels")
    except (BadName, Occupied, NoWheel) as error:
        raise Misused(str(error)) from None
    except OSError as error:
        raise Misused(f"can't write {error.filename or target}: {error.strerror}") from None
    return names, target
