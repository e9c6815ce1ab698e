"""Names derived from a service's name: package, step type and title."""

import keyword
import re
from dataclasses import dataclass

from lucius.scaffold import taken

SERVICE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")  # as in protocols
STEP_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # protocols allow 128, lines of code do not


class BadName(ValueError):
    """A name that can't be used; the message says why."""


@dataclass(frozen=True)
class Names:
    name: str
    package: str
    step_type: str
    title: str
    lucius_version: str


def names_for(name: str, step_type: str | None, lucius_version: str) -> Names:
    """Derive all names from a service's name; the step type defaults to the name in capitals. Raises BadName."""
    package = _package(_service(name))
    chosen = name.replace("-", "_").upper() if step_type is None else step_type
    if not STEP_TYPE.fullmatch(chosen):
        raise BadName(
            f"{chosen!r} can't be a step type: letters, digits, '.', '_' and '-', 64 at most, a letter or digit first"
        )
    title = name.replace("-", " ").replace("_", " ").capitalize()
    return Names(name=name, package=package, step_type=chosen, title=title, lucius_version=lucius_version)


def _service(name: str) -> str:
    if not SERVICE.fullmatch(name):
        raise BadName(
            f"{name!r} can't be a service name: lower-case letters, digits, '_' and '-', 64 at most, as in ocr-fast"
        )
    if not name[0].isalpha() or not name[-1].isalnum():
        raise BadName(f"{name!r} can't name a Python project: begin with a letter, and end with a letter or digit")
    return name


def _package(name: str) -> str:
    package = name.replace("-", "_")
    project = re.sub("_+", "_", package)  # pip treats one and several as the same
    suggested = f"{name[:50]}-service"
    if keyword.iskeyword(package):
        reason = f"{package!r} is a word of the language"
    elif project.startswith("pytest"):
        reason, suggested = "that is how pytest and its plugins are called", f"my-{name[:50]}"
    elif package in taken.NAMES or project in taken.NAMES:
        reason = f"it would hide the module or package {project!r}"
    else:
        return package
    raise BadName(f"{name!r} can't name a Python package: {reason}; try {suggested.rstrip('-_')}")
