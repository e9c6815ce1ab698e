from pathlib import Path

from lucius.worker.dedupe import Dedupe, Key, key_of
from tests.unit.worker.support import directive


def key(number: int) -> Key:
    return Key(f"job-{number}", "ocr", 1, f"lease-{number}")


def test_the_key_is_job_step_attempt_and_lease() -> None:
    assert key_of(directive(number=7)) == key(7)


def test_an_attempt_at_work_is_not_begun_again() -> None:
    dedupe = Dedupe()
    assert dedupe.begin(key(1))
    assert not dedupe.begin(key(1))


def test_a_finished_attempt_keeps_its_result() -> None:
    dedupe = Dedupe()
    dedupe.begin(key(1))
    dedupe.finish(key(1), b'{"status":"SUCCEEDED"}')
    assert dedupe.result_of(key(1)) == b'{"status":"SUCCEEDED"}'


def test_another_lease_is_another_attempt() -> None:
    dedupe = Dedupe()
    dedupe.begin(key(1))
    assert dedupe.begin(key(1)._replace(lease_id="other"))


def test_a_fenced_attempt_is_forgotten() -> None:
    dedupe = Dedupe()
    dedupe.begin(key(1))
    dedupe.forget(key(1))
    assert dedupe.begin(key(1))


def test_the_least_recently_used_are_forgotten_first() -> None:
    dedupe = Dedupe(capacity=2)
    for number in (1, 2):
        dedupe.finish(key(number), b"{}")
    dedupe.result_of(key(1))
    dedupe.finish(key(3), b"{}")
    assert [dedupe.result_of(key(number)) for number in (1, 2, 3)] == [b"{}", None, b"{}"]


def test_finished_attempts_survive_a_restart(tmp_path: Path) -> None:
    dedupe = Dedupe(tmp_path)
    dedupe.finish(key(1), b'{"a":[1,"x"]}')
    dedupe.close()
    assert Dedupe(tmp_path).result_of(key(1)) == b'{"a":[1,"x"]}'


def test_a_line_cut_short_by_a_crash_costs_only_itself(tmp_path: Path) -> None:
    dedupe = Dedupe(tmp_path)
    dedupe.finish(key(1), b'{"n":1}')
    dedupe.finish(key(2), b'{"n":2}')
    dedupe.close()
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-6])
    again = Dedupe(tmp_path)
    assert again.result_of(key(1)) == b'{"n":1}'
    assert again.result_of(key(2)) is None
    again.finish(key(3), b'{"n":3}')
    again.close()
    assert Dedupe(tmp_path).result_of(key(3)) == b'{"n":3}'


def test_the_file_stays_bounded(tmp_path: Path) -> None:
    dedupe = Dedupe(tmp_path, capacity=5)
    for number in range(100):
        dedupe.finish(key(number), b"{}")
    (file,) = tmp_path.glob("*.jsonl")
    assert len(file.read_bytes().splitlines()) <= 11
    dedupe.close()
    assert Dedupe(tmp_path, capacity=5).result_of(key(99)) == b"{}"


def test_two_processes_in_one_folder_do_not_share_a_file(tmp_path: Path) -> None:
    one, other = Dedupe(tmp_path), Dedupe(tmp_path)
    one.finish(key(1), b"{}")
    other.finish(key(2), b"{}")
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    one.close()
    assert Dedupe(tmp_path).result_of(key(1)) == b"{}"
