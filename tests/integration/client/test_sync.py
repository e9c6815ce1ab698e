"""The blocking client: the same surface on a small bridge that can be interrupted, shared and closed."""

import asyncio
import contextvars
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import typing
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from lucius.client import AsyncClient, Client, Command, Conflict, Invalid, JobFailed, NotFound, TimedOut
from lucius.client.bridge import Bridge
from lucius.client.protocols import AsyncProtocols
from lucius.client.reviews import AsyncReviews
from lucius.client.sync_parts import Protocols, Reviews
from tests.integration.api.protocols import protocol, task
from tests.integration.client.support import OCR, Server, server_in_a_thread, unused_address
from tests.support.api import KEY

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

Do = Callable[[Any], Any]


@pytest.fixture
def server_and_do(tmp_path: Path) -> Iterator[tuple[Server, Do]]:
    with server_in_a_thread(tmp_path) as made:
        yield made


@pytest.fixture
def server(server_and_do: tuple[Server, Do]) -> Server:
    return server_and_do[0]


@pytest.fixture
def do(server_and_do: tuple[Server, Do]) -> Do:
    return server_and_do[1]


@pytest.fixture
def lucius(server: Server) -> Iterator[Client]:
    with Client(server.url, api_key=KEY, retry_for=5) as made:
        yield made


# Same surface


def surface(kind: type) -> dict[str, inspect.Signature]:
    """Return the public methods with their signatures as if there were no asyncio."""
    return {name: _plain(method) for name, method in inspect.getmembers(kind, callable) if not name.startswith("_")}


def _plain(method: Any) -> inspect.Signature:
    hints = typing.get_type_hints(method)
    answers = hints.get("return")
    if typing.get_origin(answers) is AsyncGenerator:
        answers = Generator[*typing.get_args(answers), None]  # type: ignore[misc]
    signature = inspect.signature(method)
    parameters = [one.replace(annotation=hints.get(name)) for name, one in signature.parameters.items()]
    return signature.replace(parameters=parameters, return_annotation=answers)


@pytest.mark.parametrize(
    ("blocking", "asynchronous"), [(Client, AsyncClient), (Protocols, AsyncProtocols), (Reviews, AsyncReviews)]
)
def test_blocking_and_async_clients_have_equal_signatures(blocking: type, asynchronous: type) -> None:
    assert surface(blocking) == surface(asynchronous)
    assert inspect.signature(Client) == inspect.signature(AsyncClient)


@pytest.mark.parametrize("kind", [Client, Protocols, Reviews])
def test_blocking_methods_have_the_docstrings_of_the_async_ones(kind: type) -> None:
    asynchronous = {Client: AsyncClient, Protocols: AsyncProtocols, Reviews: AsyncReviews}[kind]
    for name in surface(kind):
        if original := getattr(asynchronous, name).__doc__:
            assert getattr(kind, name).__doc__ == original or name == "close"


# Operation


def test_job_can_be_followed_from_submit_to_its_end(lucius: Client, server: Server, do: Do) -> None:
    accepted = lucius.submit("OCR", **OCR)
    assert lucius.submit("OCR", **OCR).duplicate
    with pytest.raises(TimedOut):
        lucius.wait(accepted.jobId, timeout=0.1)
    do(server.api.finish(accepted.jobId))
    assert lucius.wait(accepted.jobId, check=True).status == lucius.get(accepted.jobId).status == "SUCCEEDED"
    followed = [event.seq for event in lucius.stream(accepted.jobId)]
    assert followed == [event.seq for event in lucius.events(accepted.jobId)] != []
    assert [job.jobId for job in lucius.jobs(tenant="acme", limit=5)] == [accepted.jobId]
    assert len(lucius.steps(accepted.jobId)) == len(lucius.attempts(accepted.jobId)) == 1
    assert lucius.audit(accepted.jobId).valid
    assert b"SUCCEEDED" in lucius.request("GET", f"/v1/jobs/{accepted.jobId}")


def test_acts_reviews_and_protocols_work(lucius: Client, server: Server, do: Do) -> None:
    job_id = lucius.submit("OCR", **OCR).jobId
    assert [lucius.pause(job_id).status, lucius.resume(job_id).status] == ["PAUSED", "DISPATCHING"]
    do(server.api.fail(do(server.api.pull_one()), failure_class="NON_RETRYABLE"))
    (item,) = lucius.reviews.list(job_id=job_id)
    assert lucius.reviews.get(item.review_id).acts
    assert lucius.reviews.groups().groups
    assert lucius.reviews.act(item.review_id, "discard", reason="known").outcome == "APPLIED"
    assert lucius.retry(job_id).run_no == 2
    assert lucius.cancel(job_id).status == "CANCELLED"
    with pytest.raises(Conflict):
        lucius.signal(job_id, "x")
    with pytest.raises(NotFound):
        lucius.approve(job_id, "ocr")
    with pytest.raises(NotFound):
        lucius.reject(job_id, "ocr")
    document = protocol("MINE", task("scan"))
    assert lucius.protocols.validate(document).valid
    lucius.protocols.draft(document)
    lucius.protocols.publish("MINE", 1)
    lucius.protocols.draft({**document, "version": 2})
    assert lucius.protocols.diff("MINE", 1, 2).to_version == 2
    lucius.protocols.delete("MINE", 2)
    assert len(lucius.protocols.versions("MINE").versions) == 1
    assert lucius.protocols.get("MINE").version == 1
    assert lucius.protocols.deprecate("MINE", 1, reason="old").status == "DEPRECATED"
    assert lucius.protocols.list().protocols


def test_submit_many_and_run_return_or_raise_outcomes(lucius: Client, server: Server, do: Do) -> None:
    outcomes = lucius.submit_many(Command(kind, **OCR) for kind in ("OCR", "NONSENSE"))
    assert isinstance(outcomes[1], Invalid)
    do(server.api.fail(do(server.api.pull_one()), failure_class="NON_RETRYABLE"))
    with pytest.raises(JobFailed):
        lucius.run("OCR", **OCR, timeout=5)


async def test_client_works_inside_a_running_loop(server_and_do: tuple[Server, Do]) -> None:
    """As in a notebook."""
    with Client(server_and_do[0].url, api_key=KEY) as lucius:
        assert lucius.submit("OCR", **OCR).status == "DISPATCHING"
        assert [event.seq for event in lucius.events(next(lucius.jobs()).jobId)][:2] == [1, 2]


def test_client_can_be_shared_by_threads(lucius: Client) -> None:
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: ids.append(lucius.submit("OCR", **OCR, idempotency_key=str(n)).jobId))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(set(ids)) == 8


def test_trace_of_the_calling_thread_is_sent(server: Server) -> None:
    current: contextvars.ContextVar[str | None] = contextvars.ContextVar("current", default=None)
    with Client(server.url, api_key=KEY, trace=current.get) as lucius:
        current.set(TRACE)
        assert lucius.get(lucius.submit("OCR", **OCR).jobId).traceparent == TRACE


def stream_has_closed(server: Server) -> bool:
    """Return True if the server watches no job for a stream any more, now or within 5 s."""
    deadline = time.monotonic() + 5
    while server.api.runtime.notifier.watched_jobs and time.monotonic() < deadline:
        time.sleep(0.01)
    return not server.api.runtime.notifier.watched_jobs


def test_closing_the_iterator_closes_the_stream(lucius: Client, server: Server) -> None:
    events = lucius.stream(lucius.submit("OCR", **OCR).jobId)
    assert next(events).type == "JOB_ACCEPTED"
    assert server.api.runtime.notifier.watched_jobs
    events.close()
    assert stream_has_closed(server)


async def do_nothing() -> None:
    pass


def test_closing_an_iterator_waits_for_its_source_to_close() -> None:
    closed = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0.05)
            closed.append(True)

    bridge, kept = Bridge(do_nothing), source()
    numbers = bridge.iterate(kept)
    assert next(numbers) == 1
    numbers.close()
    assert closed == [True]
    bridge.close()


# Shutdown


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Restore the default SIGINT handler: test runs in the background ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_after(seconds: float) -> None:
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_a_wait_at_once_and_the_client_stays_usable(lucius: Client) -> None:
    job_id = lucius.submit("OCR", **OCR).jobId
    began = time.monotonic()
    interrupt_after(0.2)
    with pytest.raises(KeyboardInterrupt):
        lucius.wait(job_id, timeout=30)
    assert time.monotonic() - began < 3
    assert lucius.get(job_id).status == "DISPATCHING"


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_a_stream_and_closes_it(lucius: Client, server: Server) -> None:
    job_id = lucius.submit("OCR", **OCR).jobId
    interrupt_after(0.3)
    with pytest.raises(KeyboardInterrupt):
        list(lucius.stream(job_id))
    assert lucius.get(job_id).status == "DISPATCHING"
    assert stream_has_closed(server)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_retries() -> None:
    with unused_address() as url, Client(url, api_key=KEY, retry_for=60) as lucius:
        interrupt_after(0.2)
        with pytest.raises(KeyboardInterrupt):
            lucius.submit("OCR", **OCR)


def test_close_ends_waits_of_other_threads_and_the_background_thread(server: Server) -> None:
    before = threading.active_count()
    lucius = Client(server.url, api_key=KEY)
    job_id = lucius.submit("OCR", **OCR).jobId
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            lucius.wait(job_id)
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    lucius.close()
    lucius.close()
    thread.join(5)
    assert [str(error) for error in raised] == ["this client is closed"]
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="this client is closed"):
        lucius.get(job_id)
    with pytest.raises(RuntimeError, match="this client is closed"):
        next(lucius.jobs())


def threads_have_ended(before: int) -> bool:
    """Return True if the threads started since have ended, now or within 5 s."""
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return threading.active_count() == before


def test_unreferenced_clients_keep_no_threads(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """As when a notebook cell is run again and again."""
    before = threading.active_count()
    for _ in range(5):
        Client(server.url, api_key=KEY).protocols.list()
    assert threads_have_ended(before)
    assert not caplog.records  # sessions and connections were closed as well


def test_unreferenced_client_with_an_open_stream_keeps_no_thread(server: Server) -> None:
    """Client and iterator are garbage together and are collected in any order."""
    before = threading.active_count()

    def cell() -> None:
        client = Client(server.url, api_key=KEY)
        events = client.stream(client.submit("OCR", **OCR).jobId)
        next(events)
        heap: list[object] = [client, events]
        heap.append(heap)

    cell()
    assert threads_have_ended(before)
    assert stream_has_closed(server)


def test_object_obtained_from_a_client_keeps_it_alive(server: Server) -> None:
    protocols = Client(server.url, api_key=KEY).protocols
    gc.collect()
    assert protocols.list().problems == []
    kinds = (protocol.request_type for protocol in Client(server.url, api_key=KEY).protocols.list().protocols)
    assert "OCR" in kinds


def test_iterator_can_be_closed_after_its_client(server: Server) -> None:
    with Client(server.url, api_key=KEY) as lucius:
        events = lucius.stream(lucius.submit("OCR", **OCR).jobId)
        next(events)
    events.close()


def test_client_used_after_a_fork_raises(lucius: Client) -> None:
    lucius.protocols.list()
    pid = os.fork()
    if pid == 0:
        code = 3
        signal.alarm(10)  # ends this process in any case
        try:
            lucius.protocols.list()
        except RuntimeError as error:
            code = 0 if "forked" in str(error) else 4
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_script_that_never_closes_its_client_ends(server: Server) -> None:
    script = f"""
from lucius.client import Client
print(Client({server.url!r}, api_key={KEY!r}).protocols.list().problems)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_closed_client_leaves_no_warnings(server: Server) -> None:
    script = f"""
from lucius.client import Client
with Client({server.url!r}, api_key={KEY!r}) as lucius:
    job = lucius.submit("OCR", tenant="acme", input="blob://in/a", output="blob://out/a")
    next(lucius.stream(job.jobId))
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_invalid_address_starts_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="is not an address"):
        Client("nonsense", api_key="k")
    assert threading.active_count() == before


def test_client_can_be_configured_by_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUCIUS_URL", server.url)
    monkeypatch.setenv("LUCIUS_API_KEY", KEY)
    with Client.from_env(timeout=5) as lucius:
        assert (repr(lucius), lucius.protocols.list().problems) == (f"Client('{server.url}')", [])


def test_refused_calls_leave_no_unawaited_coroutine(server: Server, recwarn: pytest.WarningsRecorder) -> None:
    lucius = Client(server.url, api_key=KEY)
    lucius.close()
    with pytest.raises(RuntimeError):
        lucius.get("x")
    assert not [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)]
    assert asyncio.iscoroutinefunction(AsyncClient.get)
