"""What a workflow was told and has yet to decide about, each thing once.

It comes by a signal; ahead of that, from the activity that waited for it; and again, from those who find its letter in
the inbox still. And a task may be lost that had written down more than the workflow remembers.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from lucius.core.decision import CallbackReply, Decision
from lucius.core.inputs import Input
from lucius.core.model import Disposition
from lucius.engine.temporal.wire import Answer, Happened, Turn, first_of, unpack

MOST_AT_ONCE = 10
"""Inputs in one decision, which touches a few dozen rows at most."""
MOST_REMEMBERED = 200
MOST_AHEAD = 40
"""Letters that one task hears of before their signals come. Those wait for it to end, at most one for each letter, and
more come meanwhile: Temporal fails a task for which a hundred wait."""


class Waiting:
    """What happened, and who waits for what became of it."""

    def __init__(
        self, happened: Input, letter: str = "", answer: "asyncio.Future[Answer] | None" = None, act_id: str = ""
    ) -> None:
        self.happened = happened
        self.letter = letter
        self.answer = answer
        self.act_id = act_id
        self.again = False
        """Decided before, by a task that was lost: it may be in the ledger."""


class Mail:
    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._heard: set[str] = set()
        """Letters that wait for a decision."""
        self._read: dict[str, None] = {}
        """Letters that are in the history already, the last of them."""
        self._still_there: dict[str, None] = {}
        """Those of them that the inbox has, too."""
        self._ahead: set[str] = set()
        """Letters whose signals have yet to come."""
        self._old_news: set[str] = set()
        self._reconciled = False

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._still_there)

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def is_ahead(self) -> bool:
        """Whether signals have yet to come that say nothing new."""
        return bool(self._ahead)

    @property
    def is_far_ahead(self) -> bool:
        return len(self._ahead) > MOST_AHEAD

    @property
    def is_doubtful(self) -> bool:
        """A task was lost that had done something; it may have heard what we are yet to hear."""
        return self._reconciled

    # What comes

    def hear(self, said: Sequence[Happened], *, again: bool = False) -> None:
        """What we have heard already is told again by those who find it in the inbox still. A service that says the
        same twice is another matter: that is another letter, a duplicate, and recorded."""
        if again:
            read = set(map(first_of, self._read))
            known = read.union(map(first_of, self._heard))
            self._still_there |= dict.fromkeys(one.letter for one in said if first_of(one.letter) in read)
            self._take_in([happened for happened in said if first_of(happened.letter) not in known])
        else:
            known = self._ahead | self._heard | self._read.keys()
            self._ahead.difference_update(happened.letter for happened in said)
            self._take_in([happened for happened in said if happened.letter not in known])

    def hear_ahead(self, said: Sequence[Happened]) -> None:
        """Before the signal that says the same, if that was not here first."""
        new = [happened for happened in said if happened.letter not in self._read.keys() | self._heard]
        self._take_in(new)
        self._ahead.update(happened.letter for happened in new)

    def add(self, waiting: Waiting, *, first: bool = False) -> None:
        if first:
            self._waiting.appendleft(waiting)
        else:
            self._waiting.append(waiting)

    def expect_no_more(self) -> None:
        """Should a signal never come, nobody waits for it for ever."""
        self._ahead.clear()

    def _take_in(self, new: Sequence[Happened]) -> None:
        self._heard.update(happened.letter for happened in new if happened.letter)
        self._waiting.extend(Waiting(unpack(happened), happened.letter) for happened in new)

    # What is decided

    def take(self) -> list[Waiting]:
        """What people do is decided by itself: a limit may refuse it, and nothing else with it."""
        if not self._waiting:
            return []
        batch = [self._waiting.popleft()]
        alone = batch[0].answer is not None or batch[0].again or self._reconciled
        while not alone and self._waiting and len(batch) < MOST_AT_ONCE and self._waiting[0].answer is None:
            batch.append(self._waiting.popleft())
        return batch

    def put_back(self, batch: Sequence[Waiting]) -> None:
        self._waiting.extendleft(reversed(batch))

    def take_all(self) -> list[Waiting]:
        batch, self._waiting = list(self._waiting), deque()
        return batch

    def take_still_there(self) -> tuple[str, ...]:
        letters, self._still_there = tuple(self._still_there), {}
        return letters

    def is_recorded(self, letters: Sequence[str]) -> None:
        self._read |= dict.fromkeys(letters)
        self.is_over(letters)
        while len(self._read) > MOST_REMEMBERED:
            del self._read[next(iter(self._read))]

    def is_over(self, letters: Sequence[str]) -> None:
        """Whatever became of them."""
        self._heard.difference_update(letters)

    def was_decided(self, turn: Turn) -> None:
        """In our name. Its signals may have come meanwhile."""
        letters = [happened.letter for happened in turn.happened]
        self._ahead.update(letter for letter in letters if letter not in self._heard)
        self._waiting = deque(waiting for waiting in self._waiting if waiting.letter not in letters)
        self.is_recorded(letters)

    # What may have been decided before

    def doubt(self) -> None:
        """The ledger is ahead: somebody decided about some of it."""
        self._reconciled = True
        for waiting in self._waiting:
            waiting.again = True

    def is_old_news(self, waiting: Waiting, decision: Decision) -> bool:
        """A duplicate only of itself, as the ledger has it from a task that was lost. If it was said twice, the second
        is a duplicate indeed."""
        reply = decision.replies[0]
        if not isinstance(reply, CallbackReply) or reply.disposition is not Disposition.DUPLICATE:
            return False
        if not waiting.again or first_of(waiting.letter) != waiting.letter:
            return False
        first = not waiting.letter or waiting.letter not in self._old_news
        self._old_news.add(waiting.letter)
        return first
