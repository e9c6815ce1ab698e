"""The pacer admits every tenant at once, except one above its share while other tenants are active."""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import process_time
from typing import Any

import pytest

from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.submit import tenant_pacing
from lucius.usecases.submit.envelope import find_tenant
from lucius.usecases.submit.tenant_pacing import (
    MAX_WAIT_SECONDS,
    MIN_RATE,
    WINDOW_SECONDS,
    TenantPacer,
    account_of_key,
    weigh_command,
)


def _decision(tenant_id: str) -> Any:
    return type("Decision", (), {"job": type("Job", (), {"command": Command(tenant_id)})})


class Command:
    def __init__(self, tenant_id: str) -> None:
        self.tenant_id = tenant_id


class Loop:
    """A process whose event loop spends `COST` seconds on each command, and whose time tests advance."""

    COST = 0.002

    def __init__(self, max_share: float = 0.5) -> None:
        self.time = 0.0
        self.busy = 0.0
        self.slept = 0.0
        self._passed = asyncio.Condition()
        self.pacer = TenantPacer(lambda: self.busy, max_share=max_share, now=lambda: self.time, sleep=self._sleep)
        self.sleep: Callable[[float], Awaitable[None]] = self.pass_time
        """What a paced command does while it waits; tests replace it."""

    async def _sleep(self, seconds: float) -> None:
        await self.sleep(seconds)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass for this command only; the loop's time is reset once it is admitted."""
        self.slept += seconds
        self.time += seconds

    async def nap(self, seconds: float) -> None:
        """Wait until the test has advanced the time by `seconds`."""
        until = self.time + seconds
        async with self._passed:
            await self._passed.wait_for(lambda: self.time >= until)

    async def tick(self, seconds: float) -> None:
        """Advance the time and run the tasks that are due."""
        self.time += seconds
        async with self._passed:
            self._passed.notify_all()
        for _ in range(5):
            await asyncio.sleep(0)

    async def submit(self, tenant_id: str) -> float:
        """Submit one command; return how long the pacer held it back."""
        before, began = self.slept, self.time
        await self.pacer.admit(tenant_id)
        self.time = began
        self.busy += self.COST
        self.pacer.committed(_decision(tenant_id))
        return self.slept - before

    async def run(self, seconds: float, **rates: float) -> dict[str, int]:
        """Let each tenant submit at most so many commands a second; return the number answered per tenant."""
        end, ready = self.time + seconds, dict.fromkeys(rates, self.time)
        answered = dict.fromkeys(rates, 0)
        while (tenant_id := min(ready, key=lambda name: ready[name])) and ready[tenant_id] < end:
            self.time = max(self.time, ready[tenant_id])
            held_back = await self.submit(tenant_id)
            answered[tenant_id] += 1
            ready[tenant_id] = self.time + max(held_back, 1 / rates[tenant_id])
        self.time = end
        return answered


async def test_tenant_that_is_alone_is_not_paced() -> None:
    loop = Loop()
    answered = await loop.run(3, acme=490)
    assert loop.slept == 0
    assert answered["acme"] == pytest.approx(3 * 490, rel=0.01)


async def test_flooding_tenant_leaves_headroom_while_another_is_active() -> None:
    """A request waits 1 / (1 - share) times as long as without load; the limit is 2."""
    loop = Loop(max_share=0.2)
    await loop.run(2, flood=480, quiet=10)
    answered = await loop.run(4, flood=480, quiet=10)
    share = answered["flood"] * loop.COST / 4
    assert 0.3 < share < 0.45, f"the flood has {share:.2f} of the loop"
    assert answered["quiet"] == pytest.approx(40, abs=1)
    assert loop.pacer.paced_tenants() == 1


async def test_flooding_tenant_is_held_to_its_share_while_others_need_the_rest() -> None:
    loop = Loop()
    await loop.run(2, flood=480, busy=150)
    answered = await loop.run(4, flood=480, busy=150)
    share = answered["flood"] * loop.COST / 4
    assert 0.4 < share < 0.6, f"the flood has {share:.2f} of the loop"
    assert answered["busy"] == pytest.approx(600, abs=5)


async def test_tenant_that_only_repeats_commands_is_paced_and_not_its_victim() -> None:
    """Repeats and refused commands make no decision, but keep the loop as busy."""
    loop = Loop()
    held_back = 0.0
    for _ in range(3_000):
        loop.time += 0.002
        loop.busy += loop.COST
        await loop.pacer.admit("repeats")
        if loop.time % 0.02 < 0.002:
            held_back += await loop.submit("victim")
    assert held_back == 0
    assert loop.slept > 0


async def test_tenant_below_its_share_is_not_delayed_beside_a_flood() -> None:
    loop = Loop()
    await loop.run(3, flood=480, quiet=10)
    assert await loop.submit("quiet") == 0


async def test_flood_is_paced_when_a_tenant_comes_back_after_a_pause() -> None:
    """If pacing began only with the tenant's command, it would be too late for that command's job."""
    loop = Loop()
    await loop.run(3, flood=480, quiet=10)
    for _ in range(3):
        await loop.run(20, flood=480)
        assert loop.pacer.paced_tenants() == 1
        await loop.submit("quiet")


async def test_pacing_ends_when_other_tenants_are_inactive() -> None:
    loop = Loop()
    await loop.run(3, flood=480, quiet=10)
    await loop.run(tenant_pacing.ACTIVE_SECONDS + 1, flood=480)
    before = loop.slept
    answered = await loop.run(1, flood=480)
    assert loop.slept == before
    assert answered["flood"] == pytest.approx(480, rel=0.01)


async def test_two_equal_tenants_share_the_loop_without_pacing() -> None:
    loop = Loop()
    await loop.run(3, acme=200, globex=200)
    assert loop.slept == 0


async def test_tenant_is_not_paced_for_work_that_is_not_its_own() -> None:
    """The loop is always busy, with reads or with decisions of another tenant."""
    loop = Loop()
    for _ in range(40):
        for _ in range(10):
            await loop.submit("acme")
        loop.pacer.committed(_decision("drains"))
        loop.time += WINDOW_SECONDS
        loop.busy += WINDOW_SECONDS
    assert loop.slept == 0


async def test_waiting_command_is_admitted_once_its_tenant_is_alone() -> None:
    loop = Loop()
    await loop.run(3, flood=480, quiet=10)
    await loop.run(tenant_pacing.ACTIVE_SECONDS - tenant_pacing.RECHECK_SECONDS, flood=480)
    await _build_backlog(loop, 4)

    async def let_others_go(seconds: float) -> None:
        await loop.pass_time(seconds)
        await loop.pacer.admit_list(account_of_key("dashboard"), 1)

    loop.sleep = let_others_go
    before = loop.slept
    await loop.pacer.admit("flood")
    assert loop.pacer.paced_tenants() == 0
    assert loop.slept - before == tenant_pacing.RECHECK_SECONDS


async def test_accounting_for_ten_thousand_tenants_is_cheap() -> None:
    loop = Loop()
    for number in range(tenant_pacing.MAX_TENANTS):
        await loop.pacer.admit(f"tenant-{number}")
    began = process_time()
    for _ in range(3):
        loop.time += WINDOW_SECONDS
        await loop.pacer.admit("tenant-0")
    assert process_time() - began < 1.5


class Held(Exception):
    """Raised in place of waiting."""


async def _hold(seconds: float) -> None:
    if seconds != tenant_pacing.REFUSAL_SECONDS:
        raise Held


async def _build_backlog(loop: Loop, seconds: float = math.inf) -> None:
    """Submit without letting time pass until the flood's next command would wait that long, or is refused."""
    sleep, loop.sleep = loop.sleep, _hold
    try:
        while loop.pacer.backlog_seconds("flood") < seconds:
            with suppress(Held):
                await loop.pacer.admit("flood")
    finally:
        loop.sleep = sleep


async def test_command_that_would_wait_too_long_is_refused() -> None:
    loop = Loop()
    await loop.run(3, flood=480, quiet=10)
    with pytest.raises(Rejected) as refused:
        await _build_backlog(loop)
    assert refused.value.code is RejectCode.TENANT_PACED
    assert refused.value.retry_after_seconds == MAX_WAIT_SECONDS


def _note_sleeps(loop: Loop) -> list[float]:
    """Let no time pass while a command sleeps; return the list of all sleeps."""
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    loop.sleep = note
    return slept


async def test_refusals_of_a_client_that_ignores_them_are_delayed() -> None:
    """A refusal costs time as well: a large body was read before it."""
    loop = Loop()
    await loop.run(3, flood=480, quiet=10)
    with pytest.raises(Rejected):
        await _build_backlog(loop)
    slept = _note_sleeps(loop)
    for _ in range(5):
        with pytest.raises(Rejected):
            await loop.pacer.admit("flood")
    assert slept == [tenant_pacing.REFUSAL_SECONDS] * 5


async def test_tenant_is_not_paced_because_its_command_was_interrupted() -> None:
    """On a busy machine a small command may take long in wall time with little CPU work."""
    loop = Loop()
    await loop.run(1, acme=20, globex=20)
    with loop.pacer.charge("acme"):
        loop.time += 0.05
        loop.busy += 0.0002
    loop.time += WINDOW_SECONDS
    await loop.submit("acme")
    assert loop.pacer.paced_tenants() == 0


async def test_rate_never_falls_below_the_minimum() -> None:
    loop = Loop(max_share=0.001)
    await loop.run(5, flood=480, quiet=10)
    answered = await loop.run(2, flood=480, quiet=10)
    assert answered["flood"] >= 2 * MIN_RATE * 0.9


async def _flood_with_large_commands(loop: Loop, seconds: float, *, quiet: bool = True) -> float:
    """Let a tenant send commands that block the loop for 50 ms and are refused; return its part of the loop's time."""
    began, blocked, next_at = loop.time, 0.0, loop.time
    while loop.time < began + seconds:
        if quiet:
            assert await loop.submit("quiet") == 0
        if loop.time >= next_at:
            before, now = loop.slept, loop.time
            await loop.pacer.admit("flood", weigh_command(bytes(900_000)))
            next_at, loop.time = now + loop.slept - before, now
            with loop.pacer.charge("flood"):
                loop.time += 0.05
                loop.busy += 0.05
            blocked += 0.05
        loop.time += 0.02
    return blocked / seconds


async def test_large_refused_commands_are_charged_by_the_time_they_block_the_loop() -> None:
    loop = Loop()
    await _flood_with_large_commands(loop, 2)
    share = await _flood_with_large_commands(loop, 10)
    assert 0.01 < share < 0.15, f"the flood blocks {share:.2f} of the loop"


async def test_tenant_that_is_alone_is_not_paced_for_large_commands() -> None:
    loop = Loop()
    assert await _flood_with_large_commands(loop, 5, quiet=False) > 0.6
    assert loop.slept == 0


async def test_one_heavy_command_does_not_lock_its_tenant_out() -> None:
    loop = Loop()
    await _flood_with_large_commands(loop, 5)
    assert loop.pacer.backlog_seconds("flood") <= MAX_WAIT_SECONDS + tenant_pacing.MAX_TURN_SECONDS


async def _list_jobs(loop: Loop, account: str, seconds: float, *, quiet: bool = True) -> float:
    """Let an account list jobs as fast as it is answered, at 10 ms each; return its part of the loop's time."""
    began, used, next_at = loop.time, 0.0, loop.time
    while loop.time < began + seconds:
        if quiet:
            assert await loop.submit("quiet") == 0
        while loop.time >= next_at and used < loop.time - began + 0.02:
            before, now = loop.slept, loop.time
            await loop.pacer.admit_list(account, 13)
            loop.pacer.count_list(account, 12)
            next_at, loop.time = now + loop.slept - before, now
            loop.busy += 0.01
            used += 0.01
        loop.time += 0.02
    return used / seconds


@pytest.mark.parametrize("account", ["flood", account_of_key("dashboard")])
async def test_lists_are_paced_while_other_tenants_submit(account: str) -> None:
    loop = Loop(max_share=0.4)
    await _list_jobs(loop, account, 2)
    share = await _list_jobs(loop, account, 5)
    assert 0.2 < share < 0.7, f"lists have {share:.2f} of the loop"
    assert loop.slept > 0


async def _run_beside_lists(loop: Loop, lister: str, seconds: float) -> float:
    """Let an account list no jobs at a high limit, 20 times a second, beside a flood; return the flood's share."""
    used, next_list = loop.busy, loop.time
    for _ in range(int(seconds * 20)):
        loop.time = next_list
        before = loop.slept
        await loop.pacer.admit_list(lister, 26)
        assert loop.slept == before
        loop.busy += 0.0003
        next_list += 0.05
        loop.time -= loop.slept - before
        await loop.run(0.05, flood=480, quiet=20)
    return (loop.busy - used) / seconds


@pytest.mark.parametrize("lister", ["quiet", "reader", account_of_key("dashboard")])
async def test_lists_that_find_little_do_not_hide_a_flood(lister: str) -> None:
    loop = Loop(max_share=0.4)
    await _run_beside_lists(loop, lister, 3)
    share = await _run_beside_lists(loop, lister, 3)
    assert share < 0.7, f"the flood and its victim have {share:.2f} of the loop"


async def test_refused_commands_do_not_lower_the_estimated_cost() -> None:
    loop = Loop()
    await loop.run(3, flood=480, quiet=10)
    with pytest.raises(Rejected):
        await _build_backlog(loop)
    _note_sleeps(loop)
    for _ in range(1_000):
        with pytest.raises(Rejected):
            await loop.pacer.admit("flood")
    loop.sleep = loop.pass_time
    loop.time += MAX_WAIT_SECONDS + 1
    await loop.run(1.5, flood=480, quiet=10)
    answered = await loop.run(2, flood=480, quiet=10)
    share = answered["flood"] * loop.COST / 2
    assert share < 0.65, f"the flood has {share:.2f} of the loop"


async def test_tenant_of_large_batches_stays_paced_between_them() -> None:
    """The commands of a batch wait concurrently, and the next batch arrives when the last of them is answered."""
    loop = Loop()
    await loop.run(3, flood=480, quiet=10)
    admitted: list[float] = []
    loop.sleep = loop.nap

    async def submit_one() -> None:
        with suppress(Rejected):
            await loop.pacer.admit("flood")
            admitted.append(loop.time)
            loop.time += loop.COST
            loop.busy += loop.COST
            loop.pacer.committed(_decision("flood"))

    async def submit_batches() -> None:
        while True:
            await asyncio.gather(*(submit_one() for _ in range(500)))

    flood = asyncio.create_task(submit_batches())
    for _ in range(1_000):
        await loop.submit("quiet")
        await loop.tick(0.02)
    flood.cancel()
    per_second = Counter(int(at) for at in admitted)
    began = int(admitted[0])
    shares = [per_second[n] * loop.COST for n in range(began + 1, began + 18)]
    assert max(shares) < 0.85, f"the flood has {max(shares):.2f} of the loop for a second"
    assert sum(shares) / len(shares) < 0.6


async def test_lists_are_not_paced_while_no_tenant_submits() -> None:
    loop = Loop()
    await _list_jobs(loop, account_of_key("dashboard"), 3, quiet=False)
    await _list_jobs(loop, "acme", 3, quiet=False)
    assert loop.slept == 0


async def test_lists_of_others_do_not_pace_a_tenant_that_submits_alone() -> None:
    loop = Loop()
    for _ in range(1_000):
        await loop.pacer.admit_list(account_of_key("dashboard"), 1)
        await loop.pacer.admit_list("reader", 1)
        await loop.submit("acme")
        loop.time += loop.COST
    assert loop.slept == 0


async def test_cancelled_command_returns_its_reserved_time() -> None:
    loop = Loop()
    await loop.run(3, flood=480, quiet=10)
    await _build_backlog(loop, 1)
    before = loop.pacer.backlog_seconds("flood")

    async def cancel(seconds: float) -> None:
        raise asyncio.CancelledError

    loop.sleep = cancel
    with pytest.raises(asyncio.CancelledError):
        await loop.pacer.admit("flood")
    assert loop.pacer.backlog_seconds("flood") == pytest.approx(before)
    assert before >= 1


@pytest.mark.parametrize(
    ("body", "tenant_id"),
    [
        (b'{"tenant_id": "Acme", "payload": {}}', "acme"),
        (b'{"payload": {"a": 1}, "tenant_id" : "acme"}', "acme"),
        (b'{"tenant_id": "no tenant"}', None),
        (b'{"tenant_id": "-"}', None),
        (b"{}", None),
        (b"", None),
    ],
)
def test_tenant_of_a_command_is_found_before_it_is_decoded(body: bytes, tenant_id: str | None) -> None:
    assert find_tenant(body) == tenant_id
