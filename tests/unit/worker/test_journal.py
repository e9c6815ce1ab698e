import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lucius.contract import StepInput
from lucius.worker.connect import open_store
from lucius.worker.idempotency import NEW, RUNNING, Finished
from lucius.worker.journal import TIDY_EVERY, Journal, LeftOver
from tests.unit.worker.journals import RESULT, Opener, finished, key, left_in, peers
from tests.unit.worker.support import directive


class TestLeftOvers:
    def test_what_a_dead_process_began_and_finished_is_there_for_the_next(self, opened: Opener) -> None:
        dead = opened()
        dead.begin([directive(number=1), directive(number=2)])
        dead.finish(directive(number=2), RESULT)
        dead.close()
        assert left_in(opened()) == {"job-1": None, "job-2": RESULT}

    def test_the_directive_is_kept_but_for_what_it_carries(self, opened: Opener) -> None:
        dead = opened()
        given = directive(payload={"a": 1}, inputs={"x": StepInput(result={"b": 2})}, item={"c": 3}, timeout_ms=5)
        dead.begin([given])
        dead.close()
        assert opened().left_over() == [LeftOver(directive(timeout_ms=5), None)]

    def test_what_was_dropped_is_not_left_over(self, opened: Opener) -> None:
        dead = opened()
        finished(dead, 1, 2)
        dead.drop(key(1))
        dead.close()
        assert left_in(opened()) == {"job-2": RESULT}

    def test_a_living_process_keeps_its_own(self, opened: Opener) -> None:
        alive, other = opened(), opened()
        finished(alive, 1)
        assert other.left_over() == []
        assert alive.left_over() == []

    def test_a_left_over_is_told_once(self, opened: Opener) -> None:
        dead = opened()
        finished(dead, 1)
        dead.close()
        one, other = opened(), opened()
        assert left_in(one) == {"job-1": RESULT}
        assert left_in(other) == {}
        assert left_in(one) == {}

    def test_a_left_over_outlives_the_one_who_took_it(self, opened: Opener) -> None:
        for _ in range(3):
            process = opened()
            finished(process, 1)
            process.close()
        for _ in range(3):
            process = opened()
            assert left_in(process) == {"job-1": RESULT}
            process.close()

    def test_what_was_begun_again_is_not_left_over(self, opened: Opener) -> None:
        dead = opened()
        dead.begin([directive()])
        dead.close()
        alive = opened()
        alive.begin([directive()])
        assert left_in(opened()) == {}

    def test_nobody_drops_the_row_of_another(self, opened: Opener) -> None:
        one, other = opened(), opened()
        finished(one, 1)
        other.drop(key())
        one.close()
        assert left_in(other) == {"job-1": RESULT}

    def test_a_directive_that_cannot_be_read_is_named_and_does_not_hide_the_others(self, opened: Opener) -> None:
        dead = opened()
        finished(dead, 1, 2)
        dead.file.execute("UPDATE attempts SET directive = '{}' WHERE key = ?", b'["job-1","ocr",1,"lease-1"]')
        dead.close()
        again = opened()
        with capture_logs() as logs:
            assert left_in(again) == {"job-2": RESULT}
        assert "job-1" in str(logs)
        again.close()
        with capture_logs() as logs:
            assert left_in(opened()) == {"job-2": RESULT}
        assert logs == []

    def test_processes_that_start_at_once_share_them_out(self, tmp_path: Path) -> None:
        assert peers("race", tmp_path, 10, 4) == {"taken": 200}

    def test_a_kill_at_any_instant_loses_nothing_and_makes_nothing_up(self, tmp_path: Path) -> None:
        tally = peers("kills", tmp_path, 120, 7)
        assert min(tally.values()) > 3, tally

    def test_what_a_killed_process_was_at_is_begun_by_nobody_beside_it(self, tmp_path: Path) -> None:
        assert peers("cut_off", tmp_path, 20) == {"told": 20}

    def test_a_child_process_does_not_keep_its_dead_parent_alive(self, tmp_path: Path) -> None:
        assert peers("orphan", tmp_path) == {"left_over": 1}


class TestDelivery:
    def test_undelivered_counts_results_that_wait(self, journal: Journal) -> None:
        journal.begin([directive(number=1), directive(number=2)])
        assert journal.undelivered() == 0
        journal.finish(directive(number=1), RESULT)
        assert journal.undelivered() == 1
        journal.drop(key(1))
        journal.drop(key(2))
        assert journal.undelivered() == 0

    def test_undelivered_counts_results_of_the_dead(self, opened: Opener) -> None:
        dead = opened()
        finished(dead, 1, 2)
        dead.close()
        journal = opened()
        journal.left_over()
        assert journal.undelivered() == 2

    def test_a_result_is_on_disk_when_finish_returns(self, journal: Journal, tmp_path: Path) -> None:
        finished(journal, 1)
        with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            assert other.execute("SELECT result FROM attempts").fetchall() == [(RESULT,)]

    def test_the_first_result_stays(self, opened: Opener) -> None:
        journal = opened()
        finished(journal, 1)
        assert journal.finish(directive(), b"another") == RESULT
        journal.close()
        assert left_in(opened()) == {"job-1": RESULT}

    def test_what_was_never_begun_can_be_finished(self, opened: Opener) -> None:
        journal = opened()
        journal.finish(directive(), RESULT)
        journal.close()
        assert left_in(opened()) == {"job-1": RESULT}

    async def test_drops_are_written_in_a_moment(self, journal: Journal, tmp_path: Path) -> None:
        finished(journal, 1, 2, 3)
        for number in (1, 2):
            journal.drop(key(number))
        with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            async with asyncio.timeout(5):
                while other.execute("SELECT count(*) FROM attempts").fetchone() != (1,):  # noqa: ASYNC110 - only asking tells
                    await asyncio.sleep(0.01)

    async def test_drops_are_written_with_the_next_pull(self, journal: Journal) -> None:
        finished(journal, 1)
        journal.drop(key(1))
        journal.begin([directive(number=2)])
        assert journal.file.rows("SELECT key FROM attempts") == [(b'["job-2","ocr",1,"lease-2"]',)]

    async def test_what_is_begun_again_right_after_its_drop_stays(self, opened: Opener) -> None:
        journal = opened()
        journal.begin([directive()])
        journal.drop(key())
        journal.begin([directive()])
        journal.close()
        assert left_in(opened()) == {"job-1": None}

    def test_without_a_folder_it_is_in_memory(self) -> None:
        journal = Journal(None)
        finished(journal, 1)
        assert journal.undelivered() == 1
        assert journal.left_over() == []
        journal.drop(key())
        assert journal.undelivered() == 0
        journal.close()

    def test_closing_twice_is_no_error(self, opened: Opener) -> None:
        journal = opened()
        journal.close()
        journal.close()


class TestTogetherWithIdempotency:
    async def test_a_spooled_result_is_remembered_by_the_same_commit(self, opened: Opener) -> None:
        """Killed between the two, a service would else run an attempt again whose result it has."""
        one, other = opened(), opened()
        await open_store("", one).claim([key()], 60)
        finished(one, 1)
        assert await open_store("", other).claim([key()], 60) == [Finished(RESULT)]

    async def test_a_result_is_remembered_when_it_was_delivered(self, opened: Opener) -> None:
        journal = opened()
        store = open_store("", journal)
        await store.claim([key()], 60)
        finished(journal, 1)
        await store.finish(key(), RESULT)
        journal.drop(key())
        journal.close()
        again = opened()
        assert left_in(again) == {}
        assert await open_store("sqlite:", again).claim([key()], 60) == [Finished(RESULT)]

    async def test_the_claim_of_a_dead_process_is_free_at_once(self, opened: Opener) -> None:
        dead, alive = opened(), opened()
        await open_store("", dead).claim([key()], 3600)
        store = open_store("", alive)
        assert await store.claim([key()], 3600) == [RUNNING]
        dead.close()
        assert await store.claim([key()], 3600) == [NEW]

    async def test_nobody_begins_what_another_has_taken_over(self, opened: Opener) -> None:
        """Else one would report that it was cut off, and the other that it was done."""
        dead = opened()
        await open_store("", dead).claim([key()], 3600)
        dead.begin([directive()])
        dead.close()
        one, other = opened(), opened()
        assert left_in(one) == {"job-1": None}
        assert await open_store("", other).claim([key()], 3600) == [RUNNING]

    async def test_what_was_cut_off_is_reported_and_never_begun_anew(self, opened: Opener) -> None:
        """Delivered again before anyone has looked: its step may be one that must not be repeated."""
        dead = opened()
        await open_store("", dead).claim([key(1), key(2)], 60)
        dead.begin([directive(number=1)])
        dead.close()
        one, other = opened(), opened()
        store = open_store("", other)
        assert await store.claim([key(1), key(2)], 60) == [RUNNING, NEW]
        assert left_in(one) == {"job-1": None}
        assert await store.claim([key(1)], 60) == [RUNNING]
        assert one.finish(directive(number=1), b"cut off") == b"cut off"
        assert await store.claim([key(1)], 60) == [Finished(b"cut off")]

    async def test_a_claim_lasts_as_long_as_its_process_lives(self, opened: Opener) -> None:
        """Its loop may be blocked for longer than a claim lasts elsewhere."""
        alive, other = opened(), opened()
        await open_store("", alive).claim([key()], 0.0)
        store = open_store("", other)
        assert await store.claim([key()], 60) == [RUNNING]
        await store.renew([key()], 60)
        alive.begin([directive()])
        assert await store.claim([key()], 60) == [RUNNING]
        assert left_in(other) == {}

    @pytest.mark.parametrize("release_first", [True, False])
    async def test_a_fenced_attempt_leaves_nothing_behind(self, journal: Journal, release_first: bool) -> None:
        store = open_store("", journal)
        await store.claim([key()], 60)
        journal.begin([directive()])
        if release_first:
            await store.release(key())
        journal.drop(key())
        if not release_first:
            await store.release(key())
        journal.begin([])
        assert journal.file.rows("SELECT * FROM attempts") == []

    async def test_claims_of_the_dead_are_swept_at_the_next_start(self, opened: Opener) -> None:
        dead = opened()
        await open_store("", dead).claim([key(number) for number in range(5)], 3600)
        dead.close()
        assert opened().file.rows("SELECT * FROM attempts") == []

    async def test_the_clock_on_the_wall_ends_no_claim(self, opened: Opener) -> None:
        wall = [1_000.0]
        journal = opened(wall=lambda: wall[0])
        store = open_store("", journal)
        await store.claim([key()], 60)
        for wrong in (1e12, 0.0, -5.0):
            wall[0] = wrong
            assert await store.claim([key()], 60) == [RUNNING]

    async def test_an_undelivered_result_is_kept_past_its_time(self, opened: Opener) -> None:
        wall = [0.0]
        journal = opened(wall=lambda: wall[0], capacity=10)
        store = open_store("", journal)
        finished(journal, *range(TIDY_EVERY + 20))
        wall[0] = 1e9
        journal.begin([])
        assert await store.claim([key(3)], 60) == [Finished(RESULT)]
        assert len(journal.file.rows("SELECT 1 FROM attempts")) == TIDY_EVERY + 20

    async def test_what_is_remembered_is_forgotten_after_its_time(self, opened: Opener) -> None:
        wall = [0.0]
        journal = opened(wall=lambda: wall[0], retention=100.0)
        open_store("", journal)
        finished(journal, *range(TIDY_EVERY))
        for number in range(TIDY_EVERY):
            journal.drop(key(number))
        wall[0] = 101.0
        finished(journal, *range(5000, 5000 + TIDY_EVERY))
        journal.begin([])
        assert len(journal.file.rows("SELECT 1 FROM attempts")) == TIDY_EVERY

    async def test_for_want_of_room_only_as_many_are_forgotten_as_must_be(
        self, opened: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = opened()
        store = open_store("", journal)
        large = b"x" * 10_000
        for number in range(TIDY_EVERY):
            journal.finish(directive(number=number), large)
            journal.drop(key(number))
        monkeypatch.setattr("lucius.worker.journal.MOST_BYTES", journal.file.used_bytes() - 20 * len(large))
        journal.begin([])
        known = [isinstance(found, Finished) for found in await store.claim(list(map(key, range(TIDY_EVERY))), 60)]
        assert not any(known[:15])
        assert all(known[30:])

    def test_a_url_that_names_no_store_is_refused(self, journal: Journal) -> None:
        with pytest.raises(ValueError, match="postgresql"):
            open_store("postgresql://x", journal)
