from lucius.engine.temporal.inbox_redelivery import batch_by_job
from lucius.engine.temporal.signal_batcher import MAX_BATCH_BYTES
from lucius.ports.inbox import InboxMessage


def message(job_id: str, number: int, size: int = 10) -> InboxMessage:
    return InboxMessage(f"{job_id}/{number}", job_id, "x" * size, number)


def batches(*messages: InboxMessage) -> list[list[str]]:
    return sorted([one.message_id for one in together] for together in batch_by_job(messages))


def test_messages_of_one_job_share_a_signal_in_order() -> None:
    mixed = [message("a", 1), message("b", 2), message("a", 3), message("b", 4), message("a", 5)]
    assert batches(*mixed) == [["a/1", "a/3", "a/5"], ["b/2", "b/4"]]


def test_messages_too_large_for_one_signal_are_split() -> None:
    half = MAX_BATCH_BYTES // 2
    assert batches(*(message("a", n, half) for n in range(5))) == [["a/0", "a/1"], ["a/2", "a/3"], ["a/4"]]
    assert batches(message("a", 1), message("a", 2, 2 * MAX_BATCH_BYTES), message("a", 3)) == [
        ["a/1"],
        ["a/2"],
        ["a/3"],
    ]


def test_no_messages_make_no_signal() -> None:
    assert batches() == []
