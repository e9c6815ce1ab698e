from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.support import Stub, serving


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving() as stub:
        yield stub


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Isolate tests from the developer's environment and from a dev server of this checkout."""
    for name in ("LUCIUS_URL", "LUCIUS_API_KEY", "LUCIUS_DEV_API_KEY", "LUCIUS_DATA_DIR", "LUCIUS_ORCHESTRATOR_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
