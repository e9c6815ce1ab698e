"""Idempotency stores that fail on demand."""

from collections.abc import Sequence

from lucius.worker.idempotency import NEW, AttemptKey, ClaimOutcome, MemoryIdempotency, StoreDown


class FlakyStore:
    """A store that can be down, and that can forget claims as if they had expired."""

    def __init__(self) -> None:
        self.inner = MemoryIdempotency()
        self.away: set[str] = set()
        self.asked: list[str] = []

    async def claim(self, keys: Sequence[AttemptKey], seconds: float) -> list[ClaimOutcome]:
        self.check("claim")
        standings = await self.inner.claim(keys, seconds)
        return [NEW if "forgets" in self.away else standing for standing in standings]

    async def renew(self, keys: Sequence[AttemptKey], seconds: float) -> None:
        self.check("renew")
        await self.inner.renew(keys, seconds)

    async def finish(self, key: AttemptKey, result: bytes) -> bytes:
        self.check("finish")
        return await self.inner.finish(key, result)

    async def release(self, key: AttemptKey) -> None:
        self.check("release")
        await self.inner.release(key)

    async def close(self) -> None:
        pass

    def check(self, what: str) -> None:
        self.asked.append(what)
        if what in self.away:
            raise StoreDown("the store is away")
