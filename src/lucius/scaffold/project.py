"""Writes the files of a new project."""

from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from lucius.scaffold.names import Names

MARK = "@@"
# Template to path; both may contain names. Templates are flat and without leading dots, so that no packager omits one.
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "Makefile": "Makefile",
    "Dockerfile": "Dockerfile",
    "dockerignore": ".dockerignore",
    "gitignore": ".gitignore",
    "ci.yml": ".github/workflows/ci.yml",
    "protocol.yaml": "protocol.yaml",
    "wheels.md": "wheels/README.md",
    "init.py": "src/@@package@@/__init__.py",
    "main.py": "src/@@package@@/__main__.py",
    "py.typed": "src/@@package@@/py.typed",
    "service.py": "src/@@package@@/service.py",
    "test_service.py": "tests/test_service.py",
}


class Occupied(Exception):
    """The target folder is not empty, or not a folder."""


def write_project(names: Names, folder: Path, *, force: bool = False) -> list[Path]:
    """Write the project's files and return their paths relative to the folder.

    With `force`, existing files of the project are replaced; others stay. Raises Occupied and OSError.
    """
    if folder.exists() and not folder.is_dir():
        raise Occupied(f"{folder} is not a folder")
    if not force and folder.is_dir() and any(folder.iterdir()):
        raise Occupied(f"{folder} is not empty; --force writes into it and replaces files of the same name")
    rendered = {Path(render(path, names)): render(_template(name), names) for name, path in FILES.items()}
    for path, text in rendered.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")
    return list(rendered)


def render(text: str, names: Names) -> str:
    for word, value in asdict(names).items():
        text = text.replace(f"{MARK}{word}{MARK}", value)
    return text


def _template(name: str) -> str:
    return (files("lucius.scaffold") / "templates" / f"{name}.tmpl").read_text(encoding="utf-8")
