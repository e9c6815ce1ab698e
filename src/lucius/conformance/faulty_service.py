"""Platform service without libraries; `--fault NAME` makes it violate the contract.

    python -m lucius.conformance.faulty_service [--service ocr] [--fault no-ack]

Without a fault it passes every case of the kit, and shows what the contract requires: pull, ACK, heartbeat, RESULT, a
folder with one file for each attempt. Faults are listed in `faults`; each is checked by `wrong(...)` here.
"""

import argparse
import os
import signal
import sys
import threading
import time
import urllib.parse
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from typing import Any

from lucius.conformance.faults import FAULTS
from lucius.conformance.http_stub import (
    FIRST_PAUSE_SECONDS,
    Json,
    KeepAliveConnection,
    OrchestratorReply,
    RetryPauses,
    Spool,
)

CONCURRENCY = 4
PULL_BATCH_DIRECTIVES = 500
WAIT_SECONDS = 5.0
GRACE_SECONDS = 10.0
GIVE_UP_SECONDS = 3600.0
NEVER = threading.Event()
IDENTITY = {"jobId": str, "stepId": str, "tenant_id": str, "attempt_no": int, "lease_id": str}
NEEDED: dict[str, Any] = {
    **IDENTITY,
    "service": str,
    "lease_seconds": (int, float),
    "payload": dict,
    "callback_urls": dict,
}
NEEDED |= {"callback_token": str, "workspace_ref": str, "output_ref": str}


class Service:
    def __init__(self, name: str, fault: str) -> None:
        self.name = name
        self._fault = fault
        self._base = os.environ["LUCIUS_ORCHESTRATOR_URL"]
        self._api_key = os.environ["LUCIUS_API_KEY"]
        self._delay = float(os.environ.get("LUCIUS_SERVICE_DELAY") or 0)
        self._spool = Spool(Path(os.environ["LUCIUS_DATA_DIR"]) / "attempts")
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._running: dict[str, threading.Thread] = {}
        self._memory: dict[str, Json] = {}
        self._pull_connection = KeepAliveConnection()
        self._max_running = int(os.environ.get("LUCIUS_CONCURRENCY") or CONCURRENCY)
        self._one_at_a_time = threading.Lock()
        self._last_token = ""
        self._workers = threading.Semaphore(2)

    def has_fault(self, *faults: str) -> bool:
        return self._fault in faults

    # Pulling

    def run(self) -> int:
        if not self.has_fault("rude-stop"):
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.signal(signal.SIGINT, self._on_signal)
        self._resume_spooled()
        pause = RetryPauses()
        code = 0
        while not self._stopping.is_set() or self.has_fault("pulls-on"):
            reply = self._pull()
            if reply is not None and reply.status in (401, 403) and not self.has_fault("insists"):
                code = 0 if self.has_fault("leaves-quietly") else 2
                break
            if reply is not None and reply.status == 200:
                pause = RetryPauses()
            elif not self.has_fault("hammers-pulls", "insists"):
                if self.has_fault("dies-on-pull-error"):
                    return 1
                self._stopping.wait(pause.after(reply))
        self._drain()
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.has_fault("deaf", "pulls-on"):
            return
        if self.has_fault("silent-stop"):
            os._exit(0)
        self._stopping.set()
        self._pull_connection.shut_down()  # directives that arrived now would be lost

    def _pull(self) -> OrchestratorReply | None:
        room = self._wait_for_capacity()
        asked = time.monotonic()
        if self._stopping.is_set():
            return None
        url = f"{self._base}/v1/services/{self.name}/directives:pull"
        wait = 0.0 if self.has_fault("spins") else WAIT_SECONDS
        try:
            reply = self._pull_connection.post(
                url, {"max": room, "wait_seconds": wait}, self._api_key, WAIT_SECONDS + 10
            )
        except (OSError, HTTPException) as error:
            log(f"pull: {error}")
            return None
        directives = reply.body.get("directives")
        if reply.status != 200 or not isinstance(directives, list):
            log(f"pull: answered {reply.status}")
            return OrchestratorReply(503, reply.retry_after, None) if reply.status == 200 else reply
        for directive in directives:
            self._take(directive)
        if not directives and time.monotonic() - asked < FIRST_PAUSE_SECONDS and not self.has_fault("spins"):
            self._stopping.wait(FIRST_PAUSE_SECONDS)
        return reply

    def _wait_for_capacity(self) -> int:
        """Wait until there is room and return for how many directives."""
        if self.has_fault("greedy"):
            return PULL_BATCH_DIRECTIVES
        with self._changed:
            self._changed.wait_for(lambda: len(self._running) < self._max_running or self._stopping.is_set())
            return max(1, self._max_running - len(self._running))

    def _drain(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout=GRACE_SECONDS)

    # Taking

    def _take(self, directive: Any) -> None:
        if self.has_fault("dies-on-malformed"):
            directive["jobId"], directive["attempt_no"] + 1, directive["callback_urls"]["ack"]
        if fault := self._invalid_reason(directive):
            log(f"ignored: {fault}")
            return
        self._last_token = directive["callback_token"]
        key = self._key(directive)
        known = self._recall(key)
        if key in self._running and not self.has_fault("runs-running"):
            log("duplicate of a running attempt")
        elif known and known["state"] == "done" and not self.has_fault("runs-finished"):
            if self.has_fault("remembers-steps"):
                known["directive"] = directive
            self._start_thread(key, lambda: self._deliver(key, known))
        elif known and self.has_fault("stuck-claim"):
            log("claimed by another process")
        else:
            self._start_thread(key, lambda: self._attempt(key, directive))

    def _key(self, directive: Json) -> str:
        names = ["jobId", "stepId", "attempt_no", "lease_id"]
        if self.has_fault("remembers-steps") or (
            self.has_fault("answers-as-before") and "idempotency_key" in directive
        ):
            names = ["idempotency_key"]
        if self.has_fault("no-step-id"):
            names = ["jobId", "attempt_no"]
        return urllib.parse.quote("-".join(str(directive[name]) for name in names), safe="")

    def _invalid_reason(self, directive: Any) -> str:
        if not isinstance(directive, dict):
            return "not an object"
        for name, kind in NEEDED.items():
            if not isinstance(directive.get(name), kind) or directive[name] == "":
                return f"{name} is missing or of the wrong type"
        if self.has_fault("strict-fields") and any(name.startswith("x_") for name in directive):
            return "an unknown field"
        if directive["service"] != self.name and not self.has_fault("takes-any"):
            return f"meant for {directive['service']}"
        if directive["attempt_no"] < 1 or directive["lease_seconds"] <= 0:
            return "attempt_no or lease_seconds is not positive"
        urls = [directive["callback_urls"].get(kind) for kind in ("ack", "heartbeat", "result")]
        return "" if all(str(url).startswith("http://") for url in urls) else "no callback URLs"

    def _recall(self, key: str) -> Json | None:
        return self._memory.get(key) if self.has_fault("forgets", "no-spool", "reruns") else self._spool.read(key)

    def _remember(self, key: str, entry: Json) -> None:
        self._memory[key] = entry
        if self.has_fault("reruns") and entry["state"] == "done" and not entry.get("delivered"):
            return
        if self.has_fault("forgets-failures", "loses-failures") and entry.get("result", {}).get("status") == "FAILED":
            return
        if not self.has_fault("forgets", "no-spool"):
            self._spool.write(key, entry)

    def _start_thread(self, key: str, work: Any) -> None:
        def run() -> None:
            try:
                work()
            finally:
                with self._changed:
                    self._running.pop(key, None)
                    self._changed.notify_all()

        with self._changed:
            self._running[key] = thread = threading.Thread(target=run, daemon=True)
        thread.start()

    def _resume_spooled(self) -> None:
        """Deliver RESULTs that an earlier process left. The bus delivers attempts without a RESULT again."""
        for key, entry in self._spool.entries():
            if entry["state"] == "done" and not entry["delivered"]:
                self._start_thread(key, lambda key=key, entry=entry: self._deliver(key, entry))
            elif entry["state"] == "begun" and self.has_fault("two-results"):
                self.send("result", entry["directive"], _failed("RETRYABLE", "RESTARTED", "the process was killed"))
            elif entry["state"] == "begun" and self.has_fault("reruns"):
                self._start_thread(key, lambda key=key, entry=entry: self._attempt(key, entry["directive"]))

    # Working

    def _attempt(self, key: str, directive: Json) -> None:
        attempt = Execution(self, directive)
        if self.has_fault("greedy"):
            self._workers.acquire()
        self._remember(key, {"state": "begun", "directive": directive})
        heartbeats = threading.Thread(target=attempt.keep_alive, daemon=True)
        heartbeats.start()
        outcome = attempt.execute(self._delay)
        attempt.done.set()
        heartbeats.join()
        if self.has_fault("greedy"):
            self._workers.release()
        if self.has_fault("late-ack"):
            self.send("ack", directive, {})
        if outcome is not None and outcome["status"] == "FAILED" and self.has_fault("own-words"):
            outcome = {"status": "FAILED", "failure_class": "PERMANENT"}
        if outcome is None:
            return
        entry = {"state": "done", "directive": directive, "result": outcome, "delivered": False}
        self._remember(key, entry)
        self._deliver(key, entry)

    def _deliver(self, key: str, entry: Json) -> None:
        within = 5.0 if self.has_fault("gives-up-soon") else GIVE_UP_SECONDS
        reply = self.send("result", entry["directive"], entry["result"], within)
        if self.has_fault("ack-after-result"):
            self.send("ack", entry["directive"], {})
        if self.has_fault("double-result"):
            self.send("result", entry["directive"], {**entry["result"], "result": {"second": True}})
        if self.has_fault("repeated-result"):
            self.send("result", entry["directive"], entry["result"])
        if reply is not None:
            self._remember(key, {**entry, "delivered": True})

    def send(
        self, kind: str, directive: Json, more: Json, within: float = GIVE_UP_SECONDS, over: threading.Event = NEVER
    ) -> OrchestratorReply | None:
        """Send a callback until it is accepted or refused and return that answer.

        Returns None after `within` seconds, or when `over` is set.
        """
        body = {name: directive[name] for name in IDENTITY} | more
        if kind == "result" and self.has_fault("wrong-lease"):
            body["lease_id"] = "lease-1"
        deadline, pause = time.monotonic() + within, RetryPauses()
        while time.monotonic() < deadline:
            reply = self._post(kind, directive, body)
            if not self._should_retry(kind, reply):
                return reply
            seconds = pause.after(None if self.has_fault("ignores-retry-after") else reply)
            if over.wait(0.01 if self.has_fault("hammers") else seconds):
                break
        return None

    def _post(self, kind: str, directive: Json, body: Json) -> OrchestratorReply | None:
        token = self._last_token if self.has_fault("wrong-token") else directive["callback_token"]
        timeout = 0.5 if self.has_fault("impatient") and kind == "result" else 10.0
        own = f"{self._base}/v1/callbacks/{kind}"
        url = own if self.has_fault("ignores-urls") else directive["callback_urls"][kind]
        try:
            if self.has_fault("serial-callbacks"):
                with self._one_at_a_time:
                    return KeepAliveConnection().post(url, body, token, timeout)
            return KeepAliveConnection().post(url, body, token, timeout)
        except (OSError, HTTPException) as error:
            log(f"{kind}: {error}")
            if self.has_fault("impatient") and kind == "result":
                body["result"] = Execution(self, directive).work()["result"]
            return None

    def _should_retry(self, kind: str, reply: OrchestratorReply | None) -> bool:
        if kind == "result" and reply is None and self.has_fault("loses-result", "trusts-silence"):
            return False
        if reply is None:
            return True
        log(f"{kind}: {reply.status} {reply.body.get('disposition') or reply.body.get('code') or ''}")
        if kind == "result" and self.has_fault("repeats-late") and reply.body.get("disposition") == "LATE":
            return True
        if kind == "result" and self.has_fault("repeats-stale") and reply.status == 409:
            return True
        if kind == "ack" and self.has_fault("one-ack"):
            return False
        if self.has_fault("repeats-refused") and reply.status in (401, 403):
            return True
        return reply.retryable and not self.has_fault("gives-up")


class Execution:
    def __init__(self, service: Service, directive: Json) -> None:
        self._service = service
        self._directive = directive
        self.done = threading.Event()
        self._fenced = threading.Event()
        self._cancelled = threading.Event()

    def keep_alive(self) -> None:
        """Send the ACK, then a heartbeat every third of the lease."""
        lease = self._directive["lease_seconds"]
        if not self._service.has_fault("no-ack", "late-ack", "ack-after-result"):
            self._apply_answer(self._service.send("ack", self._directive, {}, 30, self.done))
        if self._service.has_fault("no-heartbeat"):
            return
        while not self._fenced.is_set() and not self.done.wait(lease / 3):
            self._apply_answer(self._service.send("heartbeat", self._directive, {"progress": 0.5}, lease, self.done))

    def _apply_answer(self, reply: OrchestratorReply | None) -> None:
        if reply is None:
            return
        ignored = "ignores-stale" if reply.status == 409 else "beats-late"
        if reply.fenced and not self._service.has_fault(ignored, "repeats-refused", "repeats-stale"):
            self._fenced.set()
        if reply.body.get("disposition") == "LATE" and self._service.has_fault("stops-when-lapsed"):
            self._fenced.set()
        if reply.body.get("cancel_requested"):
            self._cancelled.set()

    def execute(self, delay: float) -> Json | None:
        """Do the step; return the content of its RESULT, None if the attempt was fenced."""
        if self._directive.get("guard") is not None and not self._service.has_fault("ignores-guard"):
            return _failed("NON_RETRYABLE", "GUARDED", "it is unknown whether it was done before")
        if self._service.has_fault("always-fails"):
            return _failed("NON_RETRYABLE", "MISCONFIGURED", "a setting is missing")
        payload = self._directive["payload"]
        seconds = payload.get("seconds", 0)
        if not isinstance(seconds, int | float):
            again = self._service.has_fault("retries-bad-payload")
            return _failed("RETRYABLE" if again else "NON_RETRYABLE", "INVALID_PAYLOAD", "seconds must be a number")
        until = time.monotonic() + delay + seconds
        while time.monotonic() < until:
            if self._fenced.wait(0.05) and not self._service.has_fault("repeats-stale", "works-fenced"):
                return None
            if self._cancelled.is_set() and not self._service.has_fault("ignores-cancel"):
                return (
                    None
                    if self._service.has_fault("silent-cancel")
                    else _failed("NON_RETRYABLE", "CANCELLED", "cancel requested")
                )
        return self.work()

    def work(self) -> Json:
        directive = self._directive
        text = f"done by {self._service.name} in process {os.getpid()} at {time.time()}\n"
        ref = f"{directive['workspace_ref']}/{directive['stepId']}/{directive['attempt_no']}/output.txt"
        for target in (ref, directive["output_ref"])[: 1 if self._service.has_fault("no-output") else 2]:
            _write(Path(urllib.parse.unquote(urllib.parse.urlsplit(target).path)), text)
        refs = [ref, f"{ref}.gone"] if self._service.has_fault("lost-artifact") else [ref]
        if self._service.has_fault("odd-ref"):
            refs = ["http://[oops"]
        status = "OK" if self._service.has_fault("invalid-result") else "SUCCEEDED"
        result = {
            "chars": len(text),
            "at": time.time(),
            "text": text * (50_000 if self._service.has_fault("big-result") else 0),
        }
        return {"status": status, "result": result, "artifact_refs": refs}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{threading.get_ident()}.tmp")
    fresh.write_text(text)
    fresh.replace(path)


def _failed(failure_class: str, code: str, message: str) -> Json:
    return {"status": "FAILED", "failure_class": failure_class, "error": {"code": code, "message": message}}


def log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="A platform service without real work, with a deliberate fault if --fault is given."
    )
    parser.add_argument("--service", default="plain")
    parser.add_argument("--fault", default="", choices=["", *FAULTS])
    arguments = parser.parse_args()
    return Service(arguments.service, arguments.fault).run()


if __name__ == "__main__":
    sys.exit(main())
