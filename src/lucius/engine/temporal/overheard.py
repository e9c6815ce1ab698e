"""What other processes told the workflows of jobs whose tasks are open here.

They announce which letters Temporal has signals for. Those are read here, out of the inbox, and told ahead: a shortcut
and no more, so whatever stands in its way is no reason to wait.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import structlog

from lucius.engine.temporal.ahead import Ahead, OpenTask
from lucius.engine.temporal.wire import Happened, packed_letter
from lucius.ports.errors import LedgerError
from lucius.ports.inbox import Inbox, Letter

log = structlog.get_logger(__name__)

MOST_WANTED = 1_000


class Overheard:
    def __init__(self, inbox: Inbox, ahead: Ahead) -> None:
        self._inbox = inbox
        self._ahead = ahead
        self._wanted: dict[str, OpenTask] = {}
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    def hear(self, letter_ids: Sequence[str]) -> None:
        """What comes up while some are read is read together, afterwards. Announced together, told together."""
        if self._closed or len(self._wanted) >= MOST_WANTED:
            return
        for letter_id in letter_ids:
            task = self._ahead.task(letter_id.partition("/")[0])
            if task is not None:
                self._wanted.pop(letter_id, None)
                self._wanted[letter_id] = task
        if self._wanted and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            try:
                self._tell(wanted, await self._inbox.letters(wanted))
            except LedgerError as error:
                log.info("could not read what was told elsewhere, its signals will say it", reason=str(error))
            except Exception:
                log.exception("reading what was told elsewhere failed, its signals will say it")

    def _tell(self, wanted: Mapping[str, OpenTask], letters: Iterable[Letter]) -> None:
        """The task that was open when we heard of it: another may have read the letter by now, of its signal."""
        said: dict[str, list[Happened]] = {}
        for letter in letters:
            if self._ahead.task(letter.job_id) is wanted[letter.letter_id]:
                said.setdefault(letter.job_id, []).extend(packed_letter(letter))
        for job_id, happened in said.items():
            self._ahead.told(job_id, happened)
