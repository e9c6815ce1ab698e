from pathlib import Path
from typing import Any

from lucius.contract import StepInput
from lucius.worker import Places, Task
from tests.unit.worker.support import directive


def task(tmp_path: Path, step: str, **changes: Any) -> Task:
    fields: dict[str, Any] = {
        "stepId": step,
        "service": step,
        "workspace_ref": f"file://{tmp_path}/workspace/lucius/acme/job-1",
        **changes,
    }
    return Task(directive(**fields), Places(blob_root=tmp_path / "blobs"))


def left(*refs: str) -> StepInput:
    return StepInput(artifact_refs=list(refs))


def stored(tmp_path: Path, ref: str) -> Path:
    if ref.startswith("blob://"):
        return tmp_path / "blobs" / ref.removeprefix("blob://")
    return Path(ref.removeprefix("file://"))
