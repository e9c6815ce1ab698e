"""Paces the commands and lists of a tenant that takes more than its share of this process while others are active.

One event loop serves every tenant. Without pacing, a tenant that submits as fast as it is answered keeps the loop busy
all the time, and every request and callback of the others queues behind its work. The pacer estimates the loop time
that each tenant's commands, lists and durable decisions cost, and measures the cost of decoding and checking commands.
While others are active, it admits the requests of a tenant above its share at a rate that brings the tenant back to it;
the rest wait, and are refused if the wait would be long. A large command counts for as much as many small ones.

A tenant may always use `max_share` of the loop, and more as long as the loop keeps `HEADROOM` for the others. Loop time
that no tenant's requests or decisions explain is charged to no tenant. The only active tenant is never paced; listing
jobs does not make others active. A request that names no tenant is charged to its key, see `account_of_key`.
"""

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from lucius.core.model.decision import Decision
from lucius.usecases.errors import RejectCode, Rejected

WINDOW_SECONDS = 0.1
ACTIVE_SECONDS = 60.0  # after its last command; shorter, and a tenant would meet an unpaced flood after each pause
MAX_SMOOTHED_SECONDS = 2.0
MAX_WAIT_SECONDS = 5.0
REFUSAL_SECONDS = 1.0  # delay of a refusal: a client that ignores it must not keep the loop busy with its bodies
MAX_TURN_SECONDS = 1.0  # longest delay that one request imposes on the next one of its tenant
RECHECK_SECONDS = 0.25  # interval at which a waiting command checks whether its tenant is still paced
MIN_RATE = 10.0  # weight per second that a tenant may always submit
WEIGHT_BYTES = 4_096  # this many bytes of a command weigh as much as a small command
MAX_BLOCK_SECONDS = 0.005  # work that blocks the loop for n times as long is charged n-fold
MAX_CUT, MAX_RAISE = 0.5, 1.1  # of a rate, from one window to the next
SMOOTHING = 0.5  # weight of the newest window in a tenant's share
HEADROOM = 0.6  # share of the loop kept free while several tenants are active; waits are then 1 / (1 - 0.4) as long
MAX_UNIT_SECONDS = 0.001  # loop time of one command or decision, beside what is measured; more is other work
MIN_UNIT_SECONDS = 1e-6
MIN_UNITS = 20  # fewer in a window say little about their cost
MAX_COST_RAISE = 1.05  # of the estimated cost, from one window to the next
MAX_TENANTS = 10_000


def account_of_key(name: str) -> str:
    """Return the account of a key, for requests whose tenant is not known. No tenant id has a colon."""
    return f"key:{name}"


def weigh_command(body: bytes) -> int:
    """Return the weight of a command before it is decoded."""
    return 1 + len(body) // WEIGHT_BYTES


class _Account(Struct):
    """Account of a tenant or a key."""

    seen_at: float
    submitted_at: float | None = None
    """When it last submitted a command or one of its jobs moved on. Lists and keys do not count."""
    share: float = 0.0
    """Share of the event loop's time, smoothed over the last windows; above 1 if it blocked the loop for long."""
    weights: float = 0.0
    """Weight of its requests per second, smoothed likewise."""
    rate: float | None = None
    """Weight per second that is admitted; None for no limit."""
    next_at: float = 0.0


class _Window:
    """Counts by account since the window began."""

    def __init__(self, began: float, busy_before: float) -> None:
        self.began = began
        self.busy_before = busy_before
        self.units: Counter[str] = Counter()
        self.weights: Counter[str] = Counter()
        self.submitted: set[str] = set()
        self.charged: defaultdict[str, float] = defaultdict(float)
        self.charged_busy = 0.0
        """Part of the busy time that is charged as measured."""


class TenantPacer:
    """Admits commands at once, or at a paced rate for a tenant above its share."""

    def __init__(
        self,
        busy_seconds: Callable[[], float],
        *,
        max_share: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`busy_seconds` returns the time that the event loop has worked or was blocked since some fixed instant."""
        self._busy_seconds = busy_seconds
        self._max_share = max_share
        self._now = now
        self._sleep = sleep
        self._accounts: dict[str, _Account] = {}
        self._unit_seconds = MAX_UNIT_SECONDS
        self._window = _Window(now(), busy_seconds())

    def committed(self, decision: Decision) -> None:
        """Count a durable decision as work for its tenant."""
        tenant_id = decision.job.command.tenant_id
        self._window.units[tenant_id] += 1
        self._window.submitted.add(tenant_id)

    async def admit(self, account: str, weight: int = 1) -> None:
        """Wait until the account may submit one more command. Raises Rejected if the wait would be too long."""
        now = self._look()
        if ":" not in account:
            self._window.submitted.add(account)
        await self._take_turn(account, weight, now)

    async def admit_list(self, account: str, weight: int) -> None:
        """Wait until the account may have one more list, which weighs as much as `weight` commands.

        Raises Rejected like `admit`. Only `count_list` charges for what the list returns, which is often far less.
        """
        await self._take_turn(account, weight, self._look())

    def count_list(self, account: str, units: int) -> None:
        """Count the results of a list as the work of `units` commands, besides the one of its admission."""
        self._window.units[account] += units

    @contextmanager
    def charge(self, account: str) -> Iterator[None]:
        """Charge the account for the time that the block keeps others waiting. The block must not await.

        That is time by the clock: on a machine with too few processors it is far more than what the loop has worked.
        Only work counts as blocking, as any command may be interrupted.
        """
        began, busy_before = self._now(), self._busy_seconds()
        try:
            yield
        finally:
            seconds, busy = self._now() - began, self._busy_seconds() - busy_before
            self._window.charged[account] += seconds * max(1.0, busy / MAX_BLOCK_SECONDS)
            self._window.charged_busy += busy

    def paced_tenants(self) -> int:
        """Count the tenants and keys whose requests are paced now."""
        return sum(account.rate is not None for account in self._accounts.values())

    def backlog_seconds(self, name: str) -> float:
        """Return how long the next request of a tenant or key would wait for its turn."""
        account = self._accounts.get(name)
        return 0.0 if account is None or account.rate is None else max(0.0, account.next_at - self._now())

    async def _take_turn(self, name: str, weight: int, now: float) -> None:
        """Wait for the turn of a request, and count the request then: one that waits or is refused has cost nothing."""
        account = self._accounts.get(name)
        if account is not None and account.rate is not None:
            await self._wait_for_turn(account, account.rate, weight, now)
        self._window.weights[name] += weight
        self._window.units[name] += 1

    async def _wait_for_turn(self, account: _Account, rate: float, weight: int, now: float) -> None:
        if account.next_at - now > MAX_WAIT_SECONDS:
            await self._sleep(REFUSAL_SECONDS)
            raise Rejected(
                RejectCode.TENANT_PACED,
                "this tenant submits more than its share while other tenants are active; slow down",
                retry_after_seconds=math.ceil(MAX_WAIT_SECONDS),
            )
        turn = max(now, account.next_at)
        length = min(weight / rate, MAX_TURN_SECONDS)
        account.next_at = turn + length
        try:
            while account.rate is not None and (left := turn - self._now()) > 0:
                await self._sleep(min(left, RECHECK_SECONDS))
        except asyncio.CancelledError:  # the turn goes to the next request
            account.next_at -= length
            raise

    def _look(self) -> float:
        """Close the window if it is over, and return the time."""
        now = self._now()
        if now - self._window.began >= WINDOW_SECONDS:
            self._close_window(now)
        return now

    def _close_window(self, now: float) -> None:
        window, busy = self._window, self._busy_seconds()
        seconds = now - window.began
        busy_share = min(1.0, (busy - window.busy_before) / seconds)
        self._learn_cost(busy - window.busy_before - window.charged_busy, window.units.total())
        self._note_seen(window, now)
        weight = SMOOTHING if seconds < MAX_SMOOTHED_SECONDS else 1.0
        for name, account in self._accounts.items():
            estimated = min(busy_share * seconds, window.units[name] * self._unit_seconds)
            share = (estimated + window.charged[name]) / seconds
            account.share += weight * (share - account.share)
            account.weights += weight * (window.weights[name] / seconds - account.weights)
        self._accounts = {
            name: account
            for name, account in self._accounts.items()
            if now - account.seen_at < ACTIVE_SECONDS or account.next_at > now
        }
        self._set_rates(busy_share, now)
        self._window = _Window(now, busy)

    def _note_seen(self, window: _Window, now: float) -> None:
        for name in window.units.keys() | window.submitted:
            if name in self._accounts or len(self._accounts) < MAX_TENANTS:
                account = self._accounts.setdefault(name, _Account(now))
                account.seen_at = now
                if name in window.submitted:
                    account.submitted_at = now

    def _learn_cost(self, busy: float, units: int) -> None:
        """Follow the cost of a unit down at once and up slowly: a loop busy with other work looks like a high cost."""
        if units >= MIN_UNITS:
            cost = max(0.0, busy) / units
            self._unit_seconds = max(MIN_UNIT_SECONDS, min(cost, self._unit_seconds * MAX_COST_RAISE, MAX_UNIT_SECONDS))

    def _set_rates(self, busy_share: float, now: float) -> None:
        submitting = sum(_submits(account, now) for account in self._accounts.values())
        for account in self._accounts.values():
            others = max(0.0, busy_share - account.share)
            allowed = max(self._max_share, 1 - HEADROOM - others)
            self._set_rate(account, allowed if submitting > _submits(account, now) else 1.0, now)

    def _set_rate(self, account: _Account, allowed: float, now: float) -> None:
        if allowed >= 1:
            account.rate = None
        elif account.share > allowed:
            rate = account.weights if account.rate is None else account.rate
            account.rate = max(MIN_RATE, rate * max(MAX_CUT, allowed / account.share))
        elif account.rate is not None:
            if account.rate <= 2 * account.weights:
                account.rate *= min(MAX_RAISE, allowed / max(account.share, 0.001))
            elif account.next_at <= now:
                account.rate = None  # it submits far less than it may


def _submits(account: _Account, now: float) -> bool:
    if account.submitted_at is None:
        return False
    return now - account.submitted_at < ACTIVE_SECONDS or account.next_at > now
