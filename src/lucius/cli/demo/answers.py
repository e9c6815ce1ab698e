"""Answers found in the contract, read from its output file."""

import os
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct, field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lucius.cli.demo.commands import QUESTIONS, Document, Question, blob_path


class _Source(Struct):
    page: int | None = None


class _Answer(Struct):
    answer: str = ""
    sources: list[_Source] = field(default_factory=list)


class _Output(Struct):
    answers: list[_Answer] = field(default_factory=list)


class FoundAnswer(Struct, frozen=True, kw_only=True):
    prompt: str
    answer: str
    page: int | None
    right: bool
    scanned: bool


def find_answers(contract: Document, blobs: Path) -> list[FoundAnswer]:
    """Return an answer for each question; empty where there is none, or no output at all."""
    path = blob_path(blobs, contract.command["output_ref"])
    try:
        output = msgspec.json.decode(path.read_bytes(), type=_Output)
    except (OSError, msgspec.DecodeError):
        output = _Output()
    given = [*output.answers, *[_Answer()] * len(QUESTIONS)]
    return [_found(question, answer) for question, answer in zip(QUESTIONS, given, strict=False)]


def _found(question: Question, given: _Answer) -> FoundAnswer:
    return FoundAnswer(
        prompt=question.prompt,
        answer=given.answer,
        page=given.sources[0].page if given.answer and given.sources else None,
        right=question.contains in given.answer,
        scanned=question.scanned,
    )


def reads_scans() -> bool:
    """Return whether the demo's OCR service has an engine for pages that are images."""
    return find_spec("rapidocr") is not None and os.environ.get("LUCIUS_OCR_ENGINE") != "off"


def show_answers(found: list[FoundAnswer], console: Console) -> None:
    table = Table(title="Found in contract.pdf", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.show_header = False
    for style in ("dim", "", "dim"):
        table.add_column("", style=style)
    for answer in found:
        table.add_row(answer.prompt, answer.answer or Text(_missing_reason(answer), style="yellow"), _where(answer))
    console.print(table)


def _where(answer: FoundAnswer) -> str:
    if answer.page is None:
        return ""
    return f"page {answer.page}, scanned" if answer.scanned and answer.right else f"page {answer.page}"


def _missing_reason(answer: FoundAnswer) -> str:
    return "on a scanned page: pip install 'lucius[services]'" if answer.scanned else "not found"
