"""Links between pages have existing targets, and files that docs/flows.md names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE_FILE = re.compile(r"\b((?:api|core|usecases|engine)/[\w/]+\.py)")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_the_page_have_existing_targets(page: Path) -> None:
    assert broken_links(page) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](other.md) [d](https://example.com/x)")
    assert broken_links(page) == ["#two", "other.md"]


def test_source_files_of_the_flows_exist() -> None:
    named = set(SOURCE_FILE.findall((ROOT / "docs" / "flows.md").read_text(encoding="utf-8")))
    assert len(named) >= 10
    assert [name for name in sorted(named) if not (ROOT / "src" / "lucius" / name).is_file()] == []
