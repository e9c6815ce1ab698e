"""Steps that a process can import. Each does one thing, with options from the payload."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from lucius.worker import FailureClass, NonRetryable, RateLimited, Service, StepContext, StepResult

TICK = 0.01
LONG = 60.0


class Params(msgspec.Struct, frozen=True):
    number: int


class LibraryError(Exception):
    pass


class CanNotBeSent(Exception):
    def __init__(self) -> None:
        super().__init__("can't be sent")
        self.lock = threading.Lock()


def write_output(ctx: StepContext) -> StepResult | None:
    """Write the output twice and another file by its ref; name the output as the payload says."""
    ref = str(ctx.files.write_output(b"1"))
    ctx.files.write_output(b"2")
    ctx.files.write_output(b"3", ref=f"{ctx.directive.workspace_ref}/kept")
    match ctx.payload["named"]:
        case "nowhere":
            return None
        case "result":
            return StepResult({"output_ref": ref})
        case _:
            return StepResult({"pages": 1}, [ref])


def nothing(ctx: StepContext) -> None:
    pass


def not_a_result(ctx: StepContext) -> Any:
    return {"pages": 1}


def double(ctx: StepContext, params: Params) -> StepResult:
    return StepResult({"doubled": params.number * 2, "pid": os.getpid()})


def fail(ctx: StepContext) -> StepResult:
    match ctx.payload["how"]:
        case "reported":
            raise RateLimited("BUSY", f"later, {ctx.directive.callback_token}", retry_after_seconds=30)
        case "mapped":
            raise LibraryError("of a library")
        case "not sendable":
            raise CanNotBeSent
        case "exit":
            sys.exit(3)
        case "base":
            raise KeyboardInterrupt
        case "stop iteration":
            raise StopIteration("over")
        case "odd text":
            raise ValueError("half a character: \udcff")
        case "group":
            raise ExceptionGroup("of two", [KeyError("x"), NonRetryable("BAD", "input")])
        case _:
            raise ValueError("what?")


def return_odd(ctx: StepContext) -> Any:
    match ctx.payload["what"]:
        case "lock":
            return StepResult({"lock": threading.Lock()})
        case "itself":
            loop: list[Any] = []
            loop.append(loop)
            return StepResult(loop)
        case "much":
            return StepResult("x" * 300_000)
        case "bytes of no text":
            return StepResult("\udcff")
        case "null":
            return StepResult(None)
        case "nan":
            return StepResult({"a": float("nan")})
        case _:
            return {"pages": 1}


def die(ctx: StepContext) -> StepResult:
    """Die at the first attempt; succeed later."""
    mark = Path(ctx.payload["mark"])
    if not mark.exists():
        mark.touch()
        if ctx.payload["how"] == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    return StepResult("alive")


def hold_the_interpreter(ctx: StepContext) -> StepResult:
    """Block in C code that lets no other thread run, not even one that would end this process, until a byte arrives."""
    ctx.progress(0.25)
    pipe = f"{ctx.payload['mark']}.pipe"
    os.mkfifo(pipe)
    waits = os.open(pipe, os.O_RDWR)
    Path(ctx.payload["mark"]).write_text(str(os.getpid()))
    ctypes.PyDLL(None).read(waits, ctypes.create_string_buffer(1), 1)
    os.close(waits)
    return StepResult("done")


def count_pages(ctx: StepContext) -> StepResult:
    """Report page by page; end when asked to stop."""
    deadline = time.monotonic() + LONG
    page = 0
    while ctx.stopping is None and time.monotonic() < deadline:
        page += 1
        ctx.progress(page, 2 * page, f"page-{page}")
        if page == 1000:
            Path(ctx.payload["mark"]).write_text(str(os.getpid()))
    return StepResult(page)


def wait_for_stop(ctx: StepContext) -> StepResult:
    """Write its process id; end when asked to stop."""
    ctx.progress(0.5)
    Path(ctx.payload["mark"]).write_text(str(os.getpid()))
    deadline = time.monotonic() + LONG
    while ctx.stopping is None and time.monotonic() < deadline:
        time.sleep(TICK)
    Path(f"{ctx.payload['mark']}.told").write_text(str(ctx.stopping))
    ctx.raise_if_stopping()
    return StepResult("never told")


def call_on_stop(ctx: StepContext) -> StepResult:
    told = threading.Event()
    ctx.on_stop(told.set)
    Path(ctx.payload["mark"]).write_text(str(os.getpid()))
    return StepResult({"told": told.wait(LONG), "stopping": ctx.stopping})


def ignore_stop(ctx: StepContext) -> StepResult:
    """Work on and ignore requests to stop."""
    Path(ctx.payload["mark"]).write_text(str(os.getpid()))
    time.sleep(ctx.payload.get("seconds", LONG))
    return StepResult("done")


def start_a_program(ctx: StepContext) -> StepResult:
    """Start a program; wait for it, or leave it running."""
    program = subprocess.Popen(["sleep", str(LONG)])
    mark = Path(ctx.payload["mark"])
    mark.with_suffix(".new").write_text(str(program.pid))
    mark.with_suffix(".new").rename(mark)
    if ctx.payload["then"] == "wait":
        program.wait()
    elif ctx.payload["then"] == "die":
        os._exit(7)
    return StepResult("done")


def leave_a_thread(ctx: StepContext) -> StepResult:
    """Leave a thread that reports progress after the attempt's end."""

    def chatter() -> None:
        while True:
            ctx.progress(0.99)
            time.sleep(TICK)

    if ctx.payload.get("chatter"):
        threading.Thread(target=chatter, daemon=True).start()
    else:
        time.sleep(0.2)
    return StepResult({"pid": os.getpid()})


def write_files(ctx: StepContext) -> StepResult:
    text = ctx.files.write("text/page 1.txt", b"one")
    json = ctx.files.write("result.json", b"{}")
    if ctx.payload.get("fail"):
        raise NonRetryable("BAD", "after writing")
    return StepResult({"text": text, "sha256": text.sha256}, [text, json])


def say_something(ctx: StepContext) -> StepResult:
    ctx.log.info("from a process", traceparent=ctx.traceparent)
    return StepResult()


def group_signalled(ctx: StepContext) -> StepResult:
    """Send this process the signals that a Ctrl-C, or a supervisor's SIGTERM to the whole group, would send it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(0.05)
    return StepResult("still here")


def was_done(ctx: StepContext) -> StepResult | None:
    return StepResult("found") if ctx.payload.get("done") else None


def in_processes() -> Service:
    """Return a service with all these steps, each in a process."""
    service = Service("ocr")
    service.step("DOUBLE", params=Params, run_in="process")(double)
    for function in (
        nothing,
        fail,
        return_odd,
        die,
        hold_the_interpreter,
        count_pages,
        wait_for_stop,
        call_on_stop,
        ignore_stop,
        start_a_program,
        leave_a_thread,
        write_files,
        write_output,
        say_something,
        group_signalled,
    ):
        service.step(function.__name__, run_in="process")(function)
    service.guard("nothing", run_in="process")(was_done)
    service.map_error(LibraryError, FailureClass.DEPENDENCY_FAILED, code="LIBRARY")
    return service
