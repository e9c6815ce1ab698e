"""Processes that share a journal, forked from one with everything imported: killed, or racing each other.

Run as a module in a separate process, because a test runner has threads and must not fork.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from lucius.worker.connect import open_store
from lucius.worker.idempotency import RUNNING, Finished, attempt_key
from lucius.worker.journal import Journal
from tests.integration.worker.support import directive

PULL = 4
LONGEST_LIFE = 0.02
WORDS = 2 + 4 * PULL  # words of one pull whose attempts are all dropped


def fork(act: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        act()
        code = 0
    except BaseException:  # noqa: BLE001 - a child must not go on with its parent's work
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def result_of(number: int) -> bytes:
    return b'{"number":%d,"%s"}' % (number, b"x" * (number % 3000))


class ActLog:
    """Log of the victim's acts: each word is written just before or after the act it names; the last one kills it."""

    def __init__(self, path: Path, last: int) -> None:
        self._path = path
        self._left = last
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_TRUNC, 0o600)

    def write(self, word: str, *numbers: int) -> None:
        os.write(self._fd, "".join(f"{word} {number}\n" for number in numbers).encode())
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    def read(self) -> dict[int, set[str]]:
        words: dict[int, set[str]] = {}
        whole, _, _cut_by_the_kill = self._path.read_text().rpartition("\n")
        for line in whole.splitlines():
            word, number = line.split()
            words.setdefault(int(number), set()).add(word)
        return words


def run_until_killed(folder: Path, diary: ActLog, first: int) -> None:
    """Begin, finish and drop attempts until killed."""
    journal = Journal(folder)
    open_store("", journal)
    number = first
    while True:
        numbers = list(range(number, number + PULL))
        number += PULL
        diary.write("begin", *numbers)
        journal.begin([directive(number=one) for one in numbers])
        diary.write("begun", *numbers)
        for one in numbers:
            diary.write("finish", one)
            journal.finish(directive(number=one), result_of(one))
            diary.write("finished", one)
        for one in numbers[: random.randrange(PULL + 1)]:
            diary.write("drop", one)
            journal.drop(attempt_key(directive(number=one)))
            diary.write("dropped", one)


def check(folder: Path, words: dict[int, set[str]]) -> dict[str, int]:
    """Check, for any instant of the kill, that nothing is lost, truncated or invented; return the counts."""
    journal = Journal(folder)
    store = open_store("", journal)
    found = {int(left.directive.jobId.removeprefix("job-")): left.result for left in journal.adopt_orphans()}
    tally = {"unfinished": 0, "undelivered": 0, "dropped": 0}
    for number, said in words.items():
        if "begun" in said and "finish" not in said:
            assert found[number] is None, f"{number} was begun and is {found[number]!r}"
            tally["unfinished"] += 1
        if "finished" in said:
            (standing,) = asyncio.run(store.claim([attempt_key(directive(number=number))], 60))
            assert standing == Finished(result_of(number)), f"{number} was finished and is {standing}"
        if "finished" in said and "drop" not in said:
            assert found[number] == result_of(number), f"{number} was finished and is {found.get(number)!r}"
            tally["undelivered"] += 1
        if "dropped" in said:
            assert number not in found, f"{number} was dropped and is there again"
            tally["dropped"] += 1
    for number, result in found.items():
        assert "begin" in words[number]
        assert result in (None, result_of(number))
        journal.drop(attempt_key(directive(number=number)))
    journal.close()
    return tally


def kills(folder: Path, rounds: int, seed: int) -> dict[str, int]:
    """Kill victims and check what they leave; return the counts.

    A third die at a word of their log, so that every stage is reached on any machine; the others at a random time.
    """
    chance = random.Random(seed)
    total: dict[str, int] = {}
    for round_no in range(rounds):
        by_word = round_no % 3 == 0
        diary = ActLog(folder / "diary", last=chance.randint(1, 2 * WORDS) if by_word else 0)
        first = round_no * 100_000
        pid = fork(lambda diary=diary, first=first: run_until_killed(folder, diary, first))  # type: ignore[misc]
        if not by_word:
            while not diary.read():
                time.sleep(0.0005)
            time.sleep(LONGEST_LIFE * chance.random() ** 2)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, "the victim ended by itself"
        for name, count in check(folder, diary.read()).items():
            total[name] = total.get(name, 0) + count
    return total


def race(folder: Path, rounds: int, racers: int) -> dict[str, int]:
    """Check that each orphan of a dead process goes to exactly one of the processes that start at once."""
    taken = 0
    for round_no in range(rounds):
        numbers = range(round_no * 100, round_no * 100 + 20)
        leave_orphans(folder, numbers)
        told = [name for names in race_once(folder, racers) for name in names]
        assert sorted(told) == sorted(f"job-{number}" for number in numbers), told
        taken += len(told)
        drop_orphans(folder)
    return {"taken": taken}


def race_once(folder: Path, racers: int) -> list[list[str]]:
    (start, go), (answers, answer), (end, stop) = os.pipe(), os.pipe(), os.pipe()

    def run() -> None:
        os.close(stop)
        os.read(start, 1)
        journal = Journal(folder)
        os.write(answer, msgspec.json.encode([left.directive.jobId for left in journal.adopt_orphans()]) + b"\n")
        os.read(end, 1)  # stay alive until all have asked

    pids = [fork(run) for _ in range(racers)]
    os.write(go, b"x" * racers)
    lines = b""
    while lines.count(b"\n") < racers:
        lines += os.read(answers, 65536)
    os.close(stop)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * racers
    for fd in (start, go, answers, answer, end):
        os.close(fd)
    return [json.loads(line) for line in lines.splitlines()]


def leave_orphans(folder: Path, numbers: range) -> None:
    def run() -> None:
        journal = Journal(folder)
        directives = [directive(number=number) for number in numbers]
        asyncio.run(open_store("", journal).claim([attempt_key(one) for one in directives], 60))
        journal.begin(directives)
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(fork(run), 0)


def drop_orphans(folder: Path) -> None:
    journal = Journal(folder)
    for left in journal.adopt_orphans():
        journal.drop(attempt_key(left.directive))
    journal.close()


def orphan(folder: Path) -> dict[str, int]:
    """Kill a process whose child lives on."""
    reading, writing = os.pipe()

    def child() -> None:
        os.write(writing, b"%d" % os.getpid())
        signal.pause()

    def run() -> None:
        journal = Journal(folder)
        journal.begin([directive()])
        fork(child)
        signal.pause()

    parent = fork(run)
    left_alone = int(os.read(reading, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        return {"left_over": len(Journal(folder).adopt_orphans())}
    finally:
        os.kill(left_alone, signal.SIGKILL)


def damaged(folder: Path, rounds: int, racers: int) -> dict[str, int]:
    """Check that processes that start at once set a damaged file aside once and share its replacement."""
    for round_no in range(rounds):
        for path in folder.glob("journal.db-*"):  # with these, SQLite could repair the file
            path.unlink()
        (folder / "journal.db").write_bytes(b"garbage")
        race_once(folder, racers)
        assert len(list(folder.glob("*.damaged-*[0-9]"))) == round_no + 1, list(folder.iterdir())
    return {"set_aside": rounds}


def cut_off(folder: Path, rounds: int) -> dict[str, int]:
    """Kill a process in the middle: its attempts go at once to a process that lives beside it."""
    journal = Journal(folder)
    store = open_store("", journal)
    told = 0
    for number in range(rounds):
        leave_orphans(folder, range(number, number + 1))
        (standing,) = asyncio.run(store.claim([attempt_key(directive(number=number))], 60))
        assert standing == RUNNING, standing
        told += len(journal.adopt_orphans())
    return {"told": told}


def abandon(folder: Path, attempts: int) -> dict[str, int]:
    leave_orphans(folder, range(attempts))
    return {"abandoned": attempts}


if __name__ == "__main__":
    what, where, *numbers = sys.argv[1:]
    acts: dict[str, Callable[..., dict[str, int]]]
    acts = {"kills": kills, "race": race, "damaged": damaged, "orphan": orphan, "cut_off": cut_off, "abandon": abandon}
    print(json.dumps(acts[what](Path(where), *map(int, numbers))))
