"""A page of the docs that is made from code: written, or checked to be current."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def keep(name: str, script: str, make: Callable[[], str], arguments: list[str] | None = None) -> int:
    """The script's exit code: 1 if the page should only be checked and is stale."""
    parser = argparse.ArgumentParser(description=f"Write docs/{name}")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    parser.add_argument("--page", type=Path, default=DOCS / name, help=f"where the page is (default: docs/{name})")
    options = parser.parse_args(arguments)
    fresh = make()
    if not options.check:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(fresh, encoding="utf-8")
        return 0
    if options.page.exists() and options.page.read_text(encoding="utf-8") == fresh:
        return 0
    print(f"{options.page} is stale: run python -m scripts.{script}", file=sys.stderr)
    return 1
