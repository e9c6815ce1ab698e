"""Real processes for end-to-end tests: started, killed, frozen, and always ended with the test."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.ports import free_port

REPO = Path(__file__).parents[2]
KEY = "e2e-key-of-enough-characters"
READY_SECONDS = 60.0

Json = dict[str, Any]


def until(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Return the first true answer of the condition; raise AssertionError if there is none in time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.01)
    return found


class Zygote:
    """Client of the process `tests.e2e.zygote`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.zygote"],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._turn = threading.Lock()

    def spawn(self, role: str, args: list[str], env: dict[str, str], log: Path) -> "Process":
        return Process(self, self.ask({"role": role, "args": args, "env": env, "log": str(log)}))

    def ask(self, request: Json) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, "the zygote has died; its error is on stderr"
        return json.loads(answer)

    def close(self) -> None:
        """Kill the zygote and everything it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close() if pipe else None


class Process:
    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self.pid = pid
        self.exit_code: int | None = None

    def send(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None if the process still runs after that time."""
        if self.exit_code is None:
            self.exit_code = self._zygote.ask({"wait": self.pid, "seconds": seconds})
        return self.exit_code

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its end."""
        self.send(signal.SIGKILL)
        assert self.wait(10) is not None

    def stop(self, seconds: float = 20.0) -> int:
        self.send(signal.SIGTERM)
        code = self.wait(seconds)
        assert code is not None, f"did not stop within {seconds} s of SIGTERM"
        return code


class Api:
    """Client of the HTTP API that uses only the standard library."""

    def __init__(self, base_url: str, key: str = KEY) -> None:
        self.base_url = base_url
        self._key = key

    def call(
        self, method: str, path: str, body: object = None, token: str | None = None, timeout: float = 30.0
    ) -> tuple[int, Json]:
        url = path if path.startswith("http") else self.base_url + path
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token or self._key}", "Content-Type": "application/json"}
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)

    def get(self, path: str) -> Json:
        status, body = self.call("GET", path)
        assert status == 200, body
        return body

    def submit(self, command: Json) -> str:
        status, body = self.call("POST", "/v1/commands", command)
        assert status == 202, body
        return str(body["jobId"])

    def pull(self, service: str, most: int = 1, wait_seconds: float = 0) -> list[Json]:
        body = {"max": most, "wait_seconds": wait_seconds}
        status, answer = self.call("POST", f"/v1/services/{service}/directives:pull", body)
        assert status == 200, answer
        return list(answer["directives"])

    def call_back(self, kind: str, directive: Json, **fields: object) -> tuple[int, Json]:
        names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
        body = {**{name: directive[name] for name in names}, **fields}
        return self.call("POST", directive["callback_urls"][kind], body, directive["callback_token"])

    def ready(self) -> bool:
        try:
            return self.call("GET", "/readyz", timeout=5)[0] == 200
        except OSError:
            return False

    def step(self, job_id: str, step_id: str) -> Json:
        steps: list[Json] = self.get(f"/v1/jobs/{job_id}/steps")["steps"]
        return next(step for step in steps if step["stepId"] == step_id)

    def events(self, job_id: str) -> list[Json]:
        found: list[Json] = []
        cursor: int | None = 0
        while cursor is not None:
            page = self.get(f"/v1/jobs/{job_id}/events?limit=500&cursor={cursor}")
            found += page["events"]
            cursor = page["next_cursor"]
        return found


class Stack:
    """Server on a fixed port and data folder, and services; each can be killed and started again."""

    def __init__(self, zygote: Zygote, folder: Path, **env: str) -> None:
        self._zygote = zygote
        self.folder = folder
        self.data_dir = folder / "data"
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.api = Api(f"http://127.0.0.1:{self.port}")
        self.env = {
            "LUCIUS_DATA_DIR": str(self.data_dir),
            "LUCIUS_DEV_API_KEY": KEY,
            "LUCIUS_ORCHESTRATOR_URL": self.api.base_url,
            "LUCIUS_LOG_LEVEL": "warning",
            "LUCIUS_BLOB_ROOT": str(folder),  # blob://in/1.txt is in/1.txt in there
            **env,
        }
        self.processes: dict[str, Process] = {}

    @property
    def server(self) -> Process:
        return self.processes["server"]

    @property
    def ledger(self) -> Path:
        return self.data_dir / "ledger.db"

    def start_server(self) -> Process:
        self.processes["server"] = self._spawn("server", "server", [str(self.port)])
        return self.server

    def await_ready(self) -> None:
        until(self._up, f"the server is ready; its log: {self.log('server')}", READY_SECONDS)

    def serve(self) -> None:
        self.start_server()
        self.await_ready()

    def start_service(self, name: str, slowest: float = 0.1) -> Process:
        args = [name, self.api.base_url, KEY, str(self.data_dir / f"service-{name}"), str(slowest)]
        Path(args[3]).mkdir(parents=True, exist_ok=True)
        self.processes[name] = self._spawn(name, "service", args)
        return self.processes[name]

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()

    def restart_after_kill(self) -> None:
        self.server.kill()
        self.serve()

    def log(self, name: str) -> str:
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def _up(self) -> bool:
        if self.server.wait(0) is not None:
            raise AssertionError(f"the server ended with {self.server.exit_code}: {self.log('server')}")
        return self.api.ready()

    def _spawn(self, name: str, role: str, args: list[str]) -> Process:
        return self._zygote.spawn(role, args, self.env, self.logs / f"{name}.log")

    def command(self, number: int = 1, request_type: str = "OCR", **fields: Any) -> Json:
        """Return a command with its own small document."""
        source = self.folder / "in" / f"{number}.txt"
        source.parent.mkdir(exist_ok=True)
        source.write_text(f"Document {number}. The supplier shall deliver {number} crates. The customer pays in May.")
        payload = {"sis": {"prompt_set": ["Who pays?"]}} if request_type.endswith("SIS") else {}
        return {
            "tenant_id": "acme",
            "request_type": request_type,
            "input_ref": f"blob://in/{number}.txt",
            "output_ref": f"blob://out/{number}.out",
            "payload": payload,
            "schema_version": "v1",
            **fields,
        }
