"""Protocol with every kind of step, for tests under faults, and the outside server that it calls and notifies."""

import random
import secrets
from pathlib import Path

import yaml
from aiohttp import web

REQUEST_TYPE = "DOSSIER"
MAX_PAGES = 5
CALL, TELL = "file", "tell"
REFUSES = 0.03


def write_protocol(folder: Path, office_url: str) -> None:
    folder.mkdir(parents=True)
    call = {"url": f"{office_url}/filed", "body": {"job": "${job.id}"}}
    told = {"url": f"{office_url}/told", "type": "dossier.filed", "data": {"job": "${job.id}"}}
    document = {
        "protocol_id": "dossier",
        "version": 1,
        "request_type": REQUEST_TYPE,
        "input_schema": {"type": "object", "properties": {"pages": {"type": "array"}}},
        "steps": [
            {
                "step_id": "pages",
                "kind": "map",
                "map": {
                    "items": "input.pages",
                    "max_parallel": 3,
                    "steps": [{"step_id": "page", "step_type": "OCR", "service": "ocr"}],
                },
            },
            {
                "step_id": "both",
                "kind": "parallel",
                "parallel": {
                    "branches": {
                        "left": [{"step_id": "vectors", "step_type": "EMBEDDING", "service": "embedding"}],
                        "right": [{"step_id": "breath", "kind": "wait", "wait": {"duration_ms": 20}}],
                    }
                },
            },
            {
                "step_id": "thick",
                "kind": "decision",
                "decision": {"choices": [{"when": "size(input.pages) > 1", "then": "agree"}], "otherwise": CALL},
            },
            {"step_id": "agree", "kind": "human_approval", "human_approval": {"approvers": ["dev"]}},
            # A short timeout: after a kill during the call, the step waits that long and some seconds more.
            {"step_id": CALL, "kind": "external_call", "external_call": call, "timeout_ms": 1_000},
            {"step_id": "signed", "kind": "wait", "wait": {"signal": "signed"}},
            {"step_id": "rest", "kind": "wait", "wait": {"duration_ms": 50}},
            {"step_id": TELL, "kind": "notify", "notify": told, "timeout_ms": 1_000},
            {"step_id": "sis", "step_type": "SIS", "service": "sis"},
        ],
    }
    (folder / "dossier.yaml").write_text(yaml.safe_dump(document))


def write_config(path: Path, port: int) -> None:
    calls = {"hosts": [f"127.0.0.1:{port}"], "allow_http": True, "allow_private": True}
    path.write_text(yaml.safe_dump({"calls": calls}))


class Office:
    """Outside server that files once per idempotency key, however often it is called."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._runner: web.AppRunner | None = None
        self.filed: dict[str, tuple[str, str]] = {}
        """Job and receipt by idempotency key."""
        self.told: set[str] = set()
        """Ids of the jobs it was notified of."""
        self.calls = 0

    async def open(self) -> None:
        app = web.Application()
        app.router.add_post("/filed", self._file)
        app.router.add_post("/told", self._hear)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _file(self, request: web.Request) -> web.Response:
        self.calls += 1
        if random.random() < REFUSES:
            return web.json_response({"detail": "not this time"}, status=500)
        job_id = (await request.json())["job"]
        receipt = self.filed.setdefault(request.headers["Idempotency-Key"], (job_id, secrets.token_hex(8)))
        return web.json_response({"receipt": receipt[1]})

    async def _hear(self, request: web.Request) -> web.Response:
        self.calls += 1
        if random.random() < REFUSES:
            return web.json_response({"detail": "not this time"}, status=500)
        self.told.add((await request.json())["data"]["job"])
        return web.Response(status=204)
