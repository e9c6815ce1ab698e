import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lucius.contract import StepInput
from lucius.worker.connect import open_store
from lucius.worker.idempotency import NEW, RUNNING, Finished
from lucius.worker.journal import RESULTS_PER_CLEANUP, Journal, OrphanedAttempt
from tests.integration.worker.journals import RESULT, Opener, adopt_results, finished, key, peers
from tests.integration.worker.support import directive


class TestOrphans:
    def test_attempts_of_a_dead_process_are_adopted_with_their_results(self, open_journal: Opener) -> None:
        dead = open_journal()
        dead.begin([directive(number=1), directive(number=2)])
        dead.finish(directive(number=2), RESULT)
        dead.close()
        assert adopt_results(open_journal()) == {"job-1": None, "job-2": RESULT}

    def test_kept_directive_omits_payload_inputs_and_item(self, open_journal: Opener) -> None:
        dead = open_journal()
        given = directive(payload={"a": 1}, inputs={"x": StepInput(result={"b": 2})}, item={"c": 3}, timeout_ms=5)
        dead.begin([given])
        dead.close()
        assert open_journal().adopt_orphans() == [OrphanedAttempt(directive(timeout_ms=5), None)]

    def test_dropped_result_is_not_adopted(self, open_journal: Opener) -> None:
        dead = open_journal()
        finished(dead, 1, 2)
        dead.drop(key(1))
        dead.close()
        assert adopt_results(open_journal()) == {"job-2": RESULT}

    def test_attempts_of_a_living_process_are_not_adopted(self, open_journal: Opener) -> None:
        alive, other = open_journal(), open_journal()
        finished(alive, 1)
        assert other.adopt_orphans() == []
        assert alive.adopt_orphans() == []

    def test_orphan_is_adopted_by_one_process_only(self, open_journal: Opener) -> None:
        dead = open_journal()
        finished(dead, 1)
        dead.close()
        one, other = open_journal(), open_journal()
        assert adopt_results(one) == {"job-1": RESULT}
        assert adopt_results(other) == {}
        assert adopt_results(one) == {}

    def test_adopted_orphan_is_adopted_again_after_its_adopter_dies(self, open_journal: Opener) -> None:
        for _ in range(3):
            process = open_journal()
            finished(process, 1)
            process.close()
        for _ in range(3):
            process = open_journal()
            assert adopt_results(process) == {"job-1": RESULT}
            process.close()

    def test_attempt_begun_again_is_no_orphan(self, open_journal: Opener) -> None:
        dead = open_journal()
        dead.begin([directive()])
        dead.close()
        alive = open_journal()
        alive.begin([directive()])
        assert adopt_results(open_journal()) == {}

    def test_row_of_another_process_cannot_be_dropped(self, open_journal: Opener) -> None:
        one, other = open_journal(), open_journal()
        finished(one, 1)
        other.drop(key())
        one.close()
        assert adopt_results(other) == {"job-1": RESULT}

    def test_unreadable_directive_is_named_once_and_does_not_hide_others(self, open_journal: Opener) -> None:
        dead = open_journal()
        finished(dead, 1, 2)
        dead.file.execute("UPDATE attempts SET directive = '{}' WHERE key = ?", b'["job-1","ocr",1,"lease-1"]')
        dead.close()
        again = open_journal()
        with capture_logs() as logs:
            assert adopt_results(again) == {"job-2": RESULT}
        assert "job-1" in str(logs)
        again.close()
        with capture_logs() as logs:
            assert adopt_results(open_journal()) == {"job-2": RESULT}
        assert logs == []

    def test_concurrently_starting_processes_share_the_orphans(self, tmp_path: Path) -> None:
        assert peers("race", tmp_path, 10, 4) == {"taken": 200}

    def test_kill_at_any_instant_loses_and_invents_no_result(self, tmp_path: Path) -> None:
        tally = peers("kills", tmp_path, 120, 7)
        assert min(tally.values()) > 3, tally

    def test_attempt_of_a_killed_process_is_not_begun_by_a_living_one(self, tmp_path: Path) -> None:
        assert peers("cut_off", tmp_path, 20) == {"told": 20}

    def test_child_process_does_not_keep_its_dead_parent_alive(self, tmp_path: Path) -> None:
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

    def test_undelivered_counts_results_of_dead_processes(self, open_journal: Opener) -> None:
        dead = open_journal()
        finished(dead, 1, 2)
        dead.close()
        journal = open_journal()
        journal.adopt_orphans()
        assert journal.undelivered() == 2

    def test_a_result_is_on_disk_when_finish_returns(self, journal: Journal, tmp_path: Path) -> None:
        finished(journal, 1)
        with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            assert other.execute("SELECT result FROM attempts").fetchall() == [(RESULT,)]

    def test_first_result_is_kept(self, open_journal: Opener) -> None:
        journal = open_journal()
        finished(journal, 1)
        assert journal.finish(directive(), b"another") == RESULT
        journal.close()
        assert adopt_results(open_journal()) == {"job-1": RESULT}

    def test_attempt_that_was_never_begun_can_be_finished(self, open_journal: Opener) -> None:
        journal = open_journal()
        journal.finish(directive(), RESULT)
        journal.close()
        assert adopt_results(open_journal()) == {"job-1": RESULT}

    async def test_drops_are_written_without_another_call(self, journal: Journal, tmp_path: Path) -> None:
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

    async def test_attempt_begun_again_right_after_its_drop_stays(self, open_journal: Opener) -> None:
        journal = open_journal()
        journal.begin([directive()])
        journal.drop(key())
        journal.begin([directive()])
        journal.close()
        assert adopt_results(open_journal()) == {"job-1": None}

    def test_journal_without_a_folder_is_in_memory(self) -> None:
        journal = Journal(None)
        finished(journal, 1)
        assert journal.undelivered() == 1
        assert journal.adopt_orphans() == []
        journal.drop(key())
        assert journal.undelivered() == 0
        journal.close()

    def test_closing_twice_is_no_error(self, open_journal: Opener) -> None:
        journal = open_journal()
        journal.close()
        journal.close()


class TestJournalAsIdempotencyStore:
    async def test_finished_result_is_remembered_by_the_same_commit(self, open_journal: Opener) -> None:
        """Killed between two commits, a service would repeat an attempt whose result it has."""
        one, other = open_journal(), open_journal()
        await open_store("", one).claim([key()], 60)
        finished(one, 1)
        assert await open_store("", other).claim([key()], 60) == [Finished(RESULT)]

    async def test_delivered_result_is_remembered_after_a_restart(self, open_journal: Opener) -> None:
        journal = open_journal()
        store = open_store("", journal)
        await store.claim([key()], 60)
        finished(journal, 1)
        await store.finish(key(), RESULT)
        journal.drop(key())
        journal.close()
        again = open_journal()
        assert adopt_results(again) == {}
        assert await open_store("sqlite:", again).claim([key()], 60) == [Finished(RESULT)]

    async def test_claim_of_a_dead_process_is_free_at_once(self, open_journal: Opener) -> None:
        dead, alive = open_journal(), open_journal()
        await open_store("", dead).claim([key()], 3600)
        store = open_store("", alive)
        assert await store.claim([key()], 3600) == [RUNNING]
        dead.close()
        assert await store.claim([key()], 3600) == [NEW]

    async def test_adopted_attempt_cannot_be_claimed(self, open_journal: Opener) -> None:
        """Otherwise one would report it as interrupted and the other as done."""
        dead = open_journal()
        await open_store("", dead).claim([key()], 3600)
        dead.begin([directive()])
        dead.close()
        one, other = open_journal(), open_journal()
        assert adopt_results(one) == {"job-1": None}
        assert await open_store("", other).claim([key()], 3600) == [RUNNING]

    async def test_interrupted_attempt_is_reported_and_never_begun_again(self, open_journal: Opener) -> None:
        """It is delivered again before orphans are adopted: its step may be unsafe to retry."""
        dead = open_journal()
        await open_store("", dead).claim([key(1), key(2)], 60)
        dead.begin([directive(number=1)])
        dead.close()
        one, other = open_journal(), open_journal()
        store = open_store("", other)
        assert await store.claim([key(1), key(2)], 60) == [RUNNING, NEW]
        assert adopt_results(one) == {"job-1": None}
        assert await store.claim([key(1)], 60) == [RUNNING]
        assert one.finish(directive(number=1), b"cut off") == b"cut off"
        assert await store.claim([key(1)], 60) == [Finished(b"cut off")]

    async def test_claim_lasts_as_long_as_its_process_lives(self, open_journal: Opener) -> None:
        """Its event loop may be blocked for longer than a claim lasts in other stores."""
        alive, other = open_journal(), open_journal()
        await open_store("", alive).claim([key()], 0.0)
        store = open_store("", other)
        assert await store.claim([key()], 60) == [RUNNING]
        await store.renew([key()], 60)
        alive.begin([directive()])
        assert await store.claim([key()], 60) == [RUNNING]
        assert adopt_results(other) == {}

    @pytest.mark.parametrize("release_first", [True, False])
    async def test_fenced_attempt_leaves_no_row(self, journal: Journal, release_first: bool) -> None:
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

    async def test_claims_of_dead_processes_are_deleted_at_the_next_start(self, open_journal: Opener) -> None:
        dead = open_journal()
        await open_store("", dead).claim([key(number) for number in range(5)], 3600)
        dead.close()
        assert open_journal().file.rows("SELECT * FROM attempts") == []

    async def test_wall_clock_changes_end_no_claim(self, open_journal: Opener) -> None:
        wall = [1_000.0]
        journal = open_journal(wall=lambda: wall[0])
        store = open_store("", journal)
        await store.claim([key()], 60)
        for wrong in (1e12, 0.0, -5.0):
            wall[0] = wrong
            assert await store.claim([key()], 60) == [RUNNING]

    async def test_undelivered_result_is_kept_past_its_retention(self, open_journal: Opener) -> None:
        wall = [0.0]
        journal = open_journal(wall=lambda: wall[0], capacity=10)
        store = open_store("", journal)
        finished(journal, *range(RESULTS_PER_CLEANUP + 20))
        wall[0] = 1e9
        journal.begin([])
        assert await store.claim([key(3)], 60) == [Finished(RESULT)]
        assert len(journal.file.rows("SELECT 1 FROM attempts")) == RESULTS_PER_CLEANUP + 20

    async def test_delivered_result_is_deleted_after_its_retention(self, open_journal: Opener) -> None:
        wall = [0.0]
        journal = open_journal(wall=lambda: wall[0], retention=100.0)
        open_store("", journal)
        finished(journal, *range(RESULTS_PER_CLEANUP))
        for number in range(RESULTS_PER_CLEANUP):
            journal.drop(key(number))
        wall[0] = 101.0
        finished(journal, *range(5000, 5000 + RESULTS_PER_CLEANUP))
        journal.begin([])
        assert len(journal.file.rows("SELECT 1 FROM attempts")) == RESULTS_PER_CLEANUP

    async def test_size_limit_deletes_only_as_many_results_as_needed(
        self, open_journal: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = open_journal()
        store = open_store("", journal)
        large = b"x" * 10_000
        for number in range(RESULTS_PER_CLEANUP):
            journal.finish(directive(number=number), large)
            journal.drop(key(number))
        monkeypatch.setattr("lucius.worker.journal.MAX_JOURNAL_BYTES", journal.file.used_bytes() - 20 * len(large))
        journal.begin([])
        known = [
            isinstance(found, Finished) for found in await store.claim(list(map(key, range(RESULTS_PER_CLEANUP))), 60)
        ]
        assert not any(known[:15])
        assert all(known[30:])

    def test_a_url_that_names_no_store_is_refused(self, journal: Journal) -> None:
        with pytest.raises(ValueError, match="postgresql"):
            open_store("postgresql://x", journal)
