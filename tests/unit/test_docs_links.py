"""Links between pages have existing targets, and files that docs/flows.md names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE = ROOT / "src" / "lucius"
SOURCE_FILE = re.compile(r"[\w/]+\.py\b")
SECTION_FOLDER = re.compile(r"\bbelow `(engine/[\w/]+)/`")


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


def missing_sources(page: str) -> list[str]:
    """Return the source files that a page names and that don't exist.

    Names are paths below `src/lucius`, or below a folder that the section names. A bare name may repeat the end of a
    path that its section has given.
    """
    missing = []
    for section in page.split("\n## "):
        folders = [SOURCE, *(SOURCE / folder for folder in SECTION_FOLDER.findall(section))]
        names = SOURCE_FILE.findall(section)
        found = {name for name in names if any((folder / name).is_file() for folder in folders)}
        given = {name.rpartition("/")[2] for name in found}
        missing += [name for name in names if name not in found and name not in given]
    return missing


def test_source_files_of_the_flows_exist() -> None:
    page = (ROOT / "docs" / "flows.md").read_text(encoding="utf-8")
    assert len(set(SOURCE_FILE.findall(page))) >= 40
    assert missing_sources(page) == []


def test_missing_sources_are_found() -> None:
    page = (
        "# Flows\n## One\n`core/decide/decide.py`, then `decide.py` and `scheduler.py`\n| `core/decide/gone.py` |\n"
        "## Two\nbelow `engine/temporal/`\n    P->>W: result (early_messages.py)\n"
        "| `fastpath/open_tasks.py`, `gone.py` |\n"
        "## Three\n`early_messages.py`"
    )
    assert missing_sources(page) == ["scheduler.py", "core/decide/gone.py", "gone.py", "early_messages.py"]
