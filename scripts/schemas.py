"""Write schemas/: JSON Schemas of every message, OpenAPI and AsyncAPI. Refuses a change that is not additive.

Readers and writers outside this repository rely on these files. What breaks them is told and nothing is written;
--check only says whether the files are up to date.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from lucius import contract as c
from lucius.api.app import fastapi_app
from lucius.api.json_schemas import clarify_schema
from lucius.contract import control as k
from lucius.contract import protocols as p
from lucius.core.protocol.definition import ProtocolDefinition
from scripts.additive import Json, schema_breaks
from scripts.additive_documents import asyncapi_breaks, openapi_breaks
from scripts.asyncapi import asyncapi

FOLDER = Path(__file__).resolve().parent.parent / "schemas"
ID_ROOT = "https://lucius.dev/schemas/v1/"

ACCEPTED: dict[str, type] = {
    "command": c.CommandEnvelope,
    "command_batch": c.CommandBatch,
    "ack": c.AckCallback,
    "heartbeat": c.HeartbeatCallback,
    "result": c.ResultCallback,
    "callback_batch": c.CallbackBatch,
    "pull_request": c.PullRequest,
    "cancel_request": c.CancelRequest,
    "outbox_retry_request": c.OutboxRetryRequest,
    "protocol_document": ProtocolDefinition,
    "publish_request": p.PublishRequest,
    "deprecate_request": p.DeprecateRequest,
    "pause_request": k.PauseRequest,
    "resume_request": k.ResumeRequest,
    "signal_request": k.SignalRequest,
    "retry_request": k.RetryRequest,
    "vote_request": k.VoteRequest,
    "review_act_request": k.ReviewActRequest,
    "review_bulk_request": k.ReviewBulkRequest,
}
SENT: dict[str, type] = {
    "directive": c.Directive,
    "pull_answer": c.PullAnswer,
    "accepted": c.Accepted,
    "command_batch_answer": c.CommandBatchAnswer,
    "callback_answer": c.CallbackAnswer,
    "callback_batch_answer": c.CallbackBatchAnswer,
    "job": c.JobView,
    "job_list": c.JobList,
    "step": c.StepWithAttempts,
    "attempt": c.AttemptView,
    "event": c.EventView,
    "event_list": c.EventList,
    "outbox_retried": c.OutboxRetried,
    "protocol": p.ProtocolView,
    "protocol_versions": p.ProtocolVersionList,
    "protocol_diff": p.ProtocolDiff,
    "protocol_validation": p.ProtocolValidation,
    "review_list": k.ReviewList,
    "review_groups": k.ReviewGroupList,
    "review_detail": k.ReviewDetail,
    "review_outcome": k.ReviewOutcome,
    "review_bulk_answer": k.ReviewBulkAnswer,
    "audit": k.AuditView,
    "problem": c.Problem,
}

Compare = Callable[[Json, Json], list[str]]


def generated() -> dict[str, Json]:
    """Return every file by its path below schemas/, as the code generates it now."""
    files = {f"v1/{name}.json": _schema(name, kind) for name, kind in {**ACCEPTED, **SENT}.items()}
    return {**files, "openapi.json": fastapi_app().openapi(), "asyncapi.json": asyncapi()}


def _schema(name: str, kind: type) -> Json:
    schema = clarify_schema(json.loads(msgspec.json.encode(msgspec.json.schema(kind, ref_template="#/$defs/{name}"))))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{ID_ROOT}{name}.json", **schema}


def breaks(old: dict[str, Json], new: dict[str, Json]) -> list[str]:
    """Return what readers and writers of the old files would miss or be refused."""
    found = [f"{path} was removed" for path in sorted(old) if path not in new]
    for path in sorted(old.keys() & new.keys()):
        found += [f"{path}: {problem}" for problem in _comparison(path)(old[path], new[path])]
    return found


def _comparison(path: str) -> Compare:
    match path:
        case "openapi.json":
            return openapi_breaks
        case "asyncapi.json":
            return asyncapi_breaks
        case _ if Path(path).stem in ACCEPTED:
            return lambda old, new: schema_breaks(old, new, "accepts")
        case _:
            return lambda old, new: schema_breaks(old, new, "sends")


def text(document: Json) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def committed(folder: Path) -> dict[str, Json]:
    paths = sorted(folder.rglob("*.json"))
    return {path.relative_to(folder).as_posix(): json.loads(path.read_text(encoding="utf-8")) for path in paths}


def stale(folder: Path, new: dict[str, Json]) -> list[str]:
    """Return the files that differ from what the code generates."""
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*.json")}
    changed = [path for path in new if path in there and (folder / path).read_text(encoding="utf-8") != text(new[path])]
    return sorted(changed + list(there ^ new.keys()))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the schemas are (default: schemas/)")
    options = parser.parse_args(arguments)
    new = generated()
    if found := breaks(committed(options.folder), new):
        print("This is not an additive change, so nothing was written:", *found, sep="\n  ", file=sys.stderr)
        return 1
    old = stale(options.folder, new)
    if options.check:
        if old:
            print("Stale, run `make schemas`:", *old, sep="\n  ", file=sys.stderr)
        return 1 if old else 0
    for path in old:
        (options.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (options.folder / path).write_text(text(new[path]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
