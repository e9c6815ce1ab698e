"""Fresh jobs that wait for operators, for the fuzzer: a job that one request acted on is of no use to the next."""

import re
from typing import Any

from schemathesis import Case

from tests.e2e.support import Api, until
from tests.support.api import command, identity

PEOPLES = re.compile(r"/v1/review|:(pause|resume|signal|retry|approve|reject)$")
SIGNED: list[dict[str, Any]] = [
    {"step_id": "sign", "kind": "human_approval", "human_approval": {"approvers": ["finance"]}},
    {"step_id": "go", "kind": "wait", "wait": {"signal": "go"}},
]
BOOKED: list[dict[str, Any]] = [
    {
        "step_id": "book",
        "step_type": "BOOK",
        "service": "people",
        "retry_policy": {"backoff_strategy": "fixed", "initial_delay_ms": 0},
        "compensation": {"step_id": "unbook", "step_type": "UNBOOK", "service": "undoing"},
    },
    {"step_id": "pay", "step_type": "PAY", "service": "people"},
]


class People:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._made = 0
        for name, steps in (("SIGNED", SIGNED), ("BOOKED", BOOKED)):
            document = {"protocol_id": name.lower(), "version": 1, "request_type": name, "steps": steps}
            self._call("/v1/protocols", document)
            self._call(f"/v1/protocols/{name}/versions/1:publish", {})

    def make_real(self, case: Case[Any], pick: int) -> None:
        """Put in a job or item that the operation can act on and, mostly, a valid body."""
        path = str(case.path)
        if "{review_id}" in path:
            case.path_parameters["review_id"] = self._stale() if path.endswith(":adopt") else self._failed()
        elif path.endswith((":retry", "/audit")):
            case.path_parameters["job_id"] = self._failed().partition("~")[0]
        elif path.endswith((":pause", ":resume", ":signal", ":approve", ":reject")):
            case.path_parameters["job_id"] = self._submit("SIGNED")
            if "step_id" in case.path_parameters:
                case.path_parameters["step_id"] = "sign"
        if pick % 8 and case.method == "POST" and PEOPLES.search(path):
            case.body = case.body if isinstance(case.body, dict) else {}
            self._let(case.body, path)

    def _let(self, body: dict[str, Any], path: str) -> None:
        if path.endswith(":signal"):
            body["name"] = "go"
        if path.endswith(":retry"):
            body.pop("from_step", None)
        if path.startswith("/v1/review"):
            for name in ("from_step", "result", "signature", "kind", "tenant_id"):
                body.pop(name, None)
            body["reason"] = "the fuzzer wants it"
        if path == "/v1/review:act":
            body.update(act="retry", ids=[self._failed(), "nowhere"])

    def _submit(self, request_type: str) -> str:
        self._made += 1
        job = self._call("/v1/commands", command(request_type=request_type, idempotency_key=f"people {self._made}"))
        return str(job["jobId"])

    def _failed(self) -> str:
        """Return the review item of a job that booked and then failed to pay."""
        job_id = self._submit("BOOKED")
        self._report(self._pull(job_id), status="SUCCEEDED")
        self._report(self._pull(job_id), status="FAILED", failure_class="NON_RETRYABLE")
        return f"{job_id}~run1"

    def _stale(self) -> str:
        """Return the review item of a success that came after a newer attempt had started."""
        job_id = self._submit("BOOKED")
        late = self._pull(job_id)
        self._report(late, status="FAILED", failure_class="TRANSIENT")
        until(lambda: self._attempt_no(job_id) == 2, "the step is tried again")
        status, _ = self._say(late, status="SUCCEEDED", result={"pages": 1})
        assert status == 409
        return f"{job_id}~book~1~{late['lease_id']}"

    def _attempt_no(self, job_id: str) -> int:
        return int(self._api.call("GET", f"/v1/jobs/{job_id}")[1]["steps"][0]["attempt_no"])

    def _pull(self, job_id: str) -> dict[str, Any]:
        pulled = self._call("/v1/services/people/directives:pull", {"max": 500, "wait_seconds": 5})
        found: dict[str, Any] = next(one for one in pulled["directives"] if one["jobId"] == job_id)
        return found

    def _report(self, directive: dict[str, Any], **said: Any) -> None:
        status, answer = self._say(directive, **said)
        assert status == 200, answer

    def _say(self, directive: dict[str, Any], **said: Any) -> tuple[int, Any]:
        body = {**identity(directive), **said}
        return self._api.call("POST", "/v1/callbacks/result", body, token=directive["callback_token"])

    def _call(self, path: str, body: Any) -> Any:
        status, answer = self._api.call("POST", path, body)
        assert status < 300, (path, answer)
        return answer
