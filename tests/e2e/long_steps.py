"""A service whose steps take long, each in another way: `python -m tests.e2e.long_steps NAME`."""

import sys
import time

from lucius.worker import Service, StepContext, StepResult

NAMES = ("steady", "careless")


def take_time(ctx: StepContext) -> StepResult:
    """Blocks all the while, and says how far it is."""
    seconds = int(ctx.payload["seconds"])
    for second in range(seconds):
        ctx.progress(second / seconds)
        time.sleep(1)
    return StepResult({"blocked": seconds, "attempt_no": ctx.attempt_no})


def compute(ctx: StepContext) -> StepResult:
    """The same with the interpreter at work, as a parser in pure Python has it."""
    seconds, began, turns = int(ctx.payload["seconds"]), time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        turns += sum(range(20_000)) % 7
        ctx.progress(passed / seconds)
        time.sleep(0.02)  # not all of a machine that others use, too
    return StepResult({"blocked": seconds, "attempt_no": ctx.attempt_no, "turns": turns})


async def block_the_loop(ctx: StepContext) -> StepResult:
    """The mistake that the runtime makes up for."""
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
