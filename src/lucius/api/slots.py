"""Limits on requests that stay open: event streams, long polls and waiting pulls."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from lucius.usecases.errors import RejectCode, Rejected

RETRY_AFTER_SECONDS = 5


class SlotLimits(Struct, frozen=True):
    """How many requests may be open. 0 stands for no limit."""

    in_all: int = 0
    per_key: int = 0
    per_tenant: int = 0


class SlotKind(Struct, frozen=True):
    """What the slots are for, as refusals say it."""

    noun: str
    advice: str
    setting: str
    """Name of the setting that limits all of them; those per key and per tenant have its name with a suffix."""
    code: RejectCode


STREAMS = SlotKind("live streams", "poll instead", "LUCIUS_MAX_STREAMS", RejectCode.STREAM_LIMIT)
LONG_POLLS = SlotKind("long polls", "ask without `wait`", "LUCIUS_MAX_LONG_POLLS", RejectCode.LONG_POLL_LIMIT)
PULLS = SlotKind("waiting pulls", "pull again later", "LUCIUS_MAX_WAITING_PULLS", RejectCode.PULL_LIMIT)


class RequestSlots:
    """Counts open requests of one kind: in all, per key and per tenant; reports the number to `on_change`."""

    def __init__(self, kind: SlotKind, limits: SlotLimits, on_change: Callable[[int], None]) -> None:
        self._kind = kind
        self._limits = limits
        self._on_change = on_change
        self._held = 0
        self._by_key: Counter[str] = Counter()
        self._by_tenant: Counter[str] = Counter()

    @contextmanager
    def hold(self, key: str, tenant: str | None) -> Iterator[None]:
        """Hold a slot while the block runs; without a tenant, it counts for the key alone. Raises Rejected."""
        limits, kind = self._limits, self._kind
        if limits.in_all and self._held >= limits.in_all:
            detail = f"too many {kind.noun}; {kind.advice}, or raise {kind.setting}"
            raise Rejected(RejectCode.NOT_READY, detail, retry_after_seconds=RETRY_AFTER_SECONDS)
        self._check(self._by_key[key], limits.per_key, f"key {key}", "PER_KEY")
        if tenant is not None:
            self._check(self._by_tenant[tenant], limits.per_tenant, f"tenant {tenant}", "PER_TENANT")
        self._count(key, tenant, 1)
        try:
            yield
        finally:
            self._count(key, tenant, -1)

    @property
    def held(self) -> int:
        return self._held

    def _check(self, held: int, limit: int, whose: str, suffix: str) -> None:
        kind = self._kind
        if limit and held >= limit:
            detail = f"{whose} has {held} {kind.noun}, as many as it may have; "
            detail += f"{kind.advice}, or raise {kind.setting}_{suffix}"
            raise Rejected(kind.code, detail, retry_after_seconds=RETRY_AFTER_SECONDS)

    def _count(self, key: str, tenant: str | None, change: int) -> None:
        self._held += change
        for counts, name in ((self._by_key, key), (self._by_tenant, tenant)):
            if name is None:
                continue
            counts[name] += change
            if not counts[name]:
                del counts[name]
        self._on_change(self._held)
