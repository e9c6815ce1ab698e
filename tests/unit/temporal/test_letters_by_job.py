from lucius.engine.temporal.bundles import MOST_BYTES
from lucius.engine.temporal.jobs import _by_job
from lucius.ports.inbox import Letter


def letter(job_id: str, number: int, size: int = 10) -> Letter:
    return Letter(f"{job_id}/{number}", job_id, "x" * size, number)


def told(*letters: Letter) -> list[list[str]]:
    return sorted([one.letter_id for one in together] for together in _by_job(letters))


def test_letters_of_one_job_are_told_together_in_their_order() -> None:
    mixed = [letter("a", 1), letter("b", 2), letter("a", 3), letter("b", 4), letter("a", 5)]
    assert told(*mixed) == [["a/1", "a/3", "a/5"], ["b/2", "b/4"]]


def test_unless_they_are_too_much_for_one_signal() -> None:
    half = MOST_BYTES // 2
    assert told(*(letter("a", n, half) for n in range(5))) == [["a/0", "a/1"], ["a/2", "a/3"], ["a/4"]]
    assert told(letter("a", 1), letter("a", 2, 2 * MOST_BYTES), letter("a", 3)) == [["a/1"], ["a/2"], ["a/3"]]


def test_nothing_is_told_if_there_is_nothing() -> None:
    assert told() == []
