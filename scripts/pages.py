"""Files generated from code: write one, or check that it is current."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def keep(name: str, script: str, make: Callable[[], str], folder: Path = DOCS) -> int:
    """Write or check a file, and return the exit code: 1 if --check finds it stale."""
    parser = argparse.ArgumentParser(description=f"Write {folder.name}/{name}")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    parser.add_argument("--page", type=Path, default=folder / name, help=f"where it is (default: {folder.name}/{name})")
    options = parser.parse_args()
    fresh = make()
    if not options.check:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(fresh, encoding="utf-8")
        return 0
    if options.page.exists() and options.page.read_text(encoding="utf-8") == fresh:
        return 0
    print(f"{options.page} is stale: run python -m scripts.{script}", file=sys.stderr)
    return 1
