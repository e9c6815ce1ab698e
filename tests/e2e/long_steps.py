"""Service with long steps that block in different ways: `python -m tests.e2e.long_steps NAME`."""

import sys
import time

from lucius.worker import Service, StepContext, StepResult

NAMES = ("steady", "careless")


def take_time(ctx: StepContext) -> StepResult:
    """Block for as long as the payload says, reporting progress."""
    seconds = int(ctx.payload["seconds"])
    for second in range(seconds):
        ctx.progress(second / seconds)
        time.sleep(1)
    return StepResult({"blocked": seconds, "attempt_no": ctx.attempt_no})


def compute(ctx: StepContext) -> StepResult:
    """Compute for as long as the payload says, as a parser in pure Python would."""
    seconds, began, turns = int(ctx.payload["seconds"]), time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        turns += sum(range(20_000)) % 7
        ctx.progress(passed / seconds)
        time.sleep(0.02)  # leaves some of a shared machine to others
    return StepResult({"blocked": seconds, "attempt_no": ctx.attempt_no, "turns": turns})


async def block_the_loop(ctx: StepContext) -> StepResult:
    """Block the event loop: a mistake that the runtime compensates for."""
    return take_time(ctx)


def service_of(name: str) -> Service:
    service = Service(name)
    if name == "steady":
        service.step("IN_THREAD")(take_time)
        service.step("IN_PROCESS", run_in="process")(compute)
    else:
        service.step("ON_LOOP")(block_the_loop)
    return service


if __name__ == "__main__":
    service_of(sys.argv[1]).run()
