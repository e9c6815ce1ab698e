"""Idempotency stores with moods."""

from collections.abc import Sequence

from lucius.worker.idempotency import NEW, Key, MemoryIdempotency, Standing, StoreDown


class Flaky:
    """A store that is away when told to be, and forgets claims as one does whose time ran out."""

    def __init__(self) -> None:
        self.inner = MemoryIdempotency()
        self.away: set[str] = set()
        self.asked: list[str] = []

    async def claim(self, keys: Sequence[Key], seconds: float) -> list[Standing]:
        self._check("claim")
        standings = await self.inner.claim(keys, seconds)
        return [NEW if "forgets" in self.away else standing for standing in standings]

    async def renew(self, keys: Sequence[Key], seconds: float) -> None:
        self._check("renew")
        await self.inner.renew(keys, seconds)

    async def finish(self, key: Key, result: bytes) -> bytes:
        self._check("finish")
        return await self.inner.finish(key, result)

    async def release(self, key: Key) -> None:
        self._check("release")
        await self.inner.release(key)

    async def close(self) -> None:
        pass

    def _check(self, what: str) -> None:
        self.asked.append(what)
        if what in self.away:
            raise StoreDown("the store is away")
