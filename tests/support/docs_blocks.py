"""Code blocks of the documentation, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

from msgspec import Struct

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
OPERATORS = {"&&", "||", "|", ";", "(", ")", "()", "&"}
KEYWORDS = {"while", "do", "done", "then", "fi", "if", "true", "exec", "export"}
ASSIGNMENT = re.compile(r"(\w+)=")


class Block(Struct, frozen=True):
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Command(Struct, frozen=True):
    """One program call of a shell line: its words, and the variables that are set for it."""

    words: list[str]
    variables: list[str]


def blocks_in(page: str, text: str) -> list[Block]:
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[2].strip(), dedent(found[3]))
        for found in FENCE.finditer(text)
    ]


def all_blocks() -> list[Block]:
    pages = ((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in PAGES)
    return [block for name, text in pages for block in blocks_in(name, text)]


def commands_in(block: Block) -> list[Command]:
    """Return the commands of a `sh` block, or those after the prompts of a `console` block."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [command for line in lines for command in commands_of(line)]


def commands_of(line: str) -> Iterator[Command]:
    """Split a shell line into its commands. Raises ValueError if a quote is not closed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word not in OPERATORS:
            words.append(word)
        elif words:
            yield _command(words)
            words = []


def _command(words: list[str]) -> Command:
    if ">" in words:
        words = words[: words.index(">")]
    variables = []
    while words and (words[0] in KEYWORDS or ASSIGNMENT.match(words[0])):
        if found := ASSIGNMENT.match(words[0]):
            variables.append(found[1])
        words = words[1:]
    return Command(words, variables)
