import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.reference_services.chunking import (
    MAX_SENTENCE_CHARS,
    ChunkBy,
    chunk_spans,
    min_chunk_count,
    paragraph_spans,
    sentence_spans,
)

TEXTS = st.text(alphabet=st.sampled_from("aB1 .!\n\f,。"), max_size=300)


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("It costs 1,240.50 euros. Next.", ["It costs 1,240.50 euros.", "Next."]),
        ("See No. 4 and Dr. Weber, e.g. here. Done.", ["See No. 4 and Dr. Weber, e.g. here.", "Done."]),
        ("Shares of Yahoo! were sold. Next.", ["Shares of Yahoo! were sold.", "Next."]),
        ("Am 3. März kam er. Er blieb.", ["Am 3. März kam er.", "Er blieb."]),
        ('He said "stop." Then he left.', ['He said "stop."', "Then he left."]),
        ("これは本です。次の文。", ["これは本です。", "次の文。"]),
        ("a line that the paper's edge\nends early. Next", ["a line that the paper's edge\nends early.", "Next"]),
        (
            "2. Term\nThis agreement ends on the last day of May.",
            ["2. Term", "This agreement ends on the last day of May."],
        ),
        ("We sell:\n- pumps of all kinds\n- valves", ["We sell:", "- pumps of all kinds", "- valves"]),
        ("First page\fSecond page", ["First page", "Second page"]),
        ("", []),
        (" \n\f ", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, found: list[str]) -> None:
    assert sentences(text) == found


def test_paragraphs_end_at_blank_lines_and_page_breaks() -> None:
    text = "one\ntwo\n \n\nthree\f\nfour"
    assert [text[start:end] for start, end in paragraph_spans(text)] == ["one\ntwo", "three", "four"]


def test_chunks_by_size_overlap() -> None:
    assert chunk_spans("x" * 250, "size", 100, 20, 0) == [(0, 100), (80, 180), (160, 250)]


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 180, 181, 1000])
def test_minimum_chunk_count_by_size_is_exact(length: int) -> None:
    spans = chunk_spans("x" * length, "size", 100, 20, 0)
    assert len(spans) == min_chunk_count("x" * length, "size", 100, 20)
    assert spans[-1][1] == length


def test_sentence_chunks_are_filled_and_overlap_by_whole_sentences() -> None:
    text = "Aaaa aaaa. Bbbb bbbb. Cccc cccc. Dddd dddd."
    found = [text[start:end] for start, end in chunk_spans(text, "sentences", 32, 10, 0)]
    assert found == ["Aaaa aaaa. Bbbb bbbb. Cccc cccc.", "Cccc cccc. Dddd dddd."]
    assert [text[a:b] for a, b in chunk_spans(text, "sentences", 22, 0, 0)] == [text[:21], text[22:]]


def test_short_paragraphs_are_joined_and_long_ones_split_between_sentences() -> None:
    text = "Title\n\nShort one.\n\nA long paragraph goes here. It has two sentences."
    parts = [text[start:end] for start, end in chunk_spans(text, "paragraphs", 30, 0, 8)]
    assert parts == ["Title\n\nShort one.", "A long paragraph goes here.", "It has two sentences."]
    assert len(chunk_spans(text, "paragraphs", 100, 0, 0)) == 3


@given(
    TEXTS,
    st.sampled_from(["size", "sentences", "paragraphs"]),
    st.integers(1, 40),
    st.integers(0, 39),
    st.integers(0, 40),
)
def test_chunks_cover_the_text_in_order_and_never_exceed_their_size(
    text: str, by: ChunkBy, size: int, overlap: int, least: int
) -> None:
    overlap, least = min(overlap, size - 1), min(least, size)
    spans = chunk_spans(text, by, size, overlap, least)
    assert len(spans) >= min_chunk_count(text, by, size, overlap) if least == 0 else spans
    assert all(
        0 <= start <= end <= len(text) and end - start <= max(size, len(text) if not text.strip() else 0)
        for start, end in spans
    )
    assert spans == sorted(spans)
    if text.strip():
        covered = {offset for start, end in spans for offset in range(start, end)}
        assert {offset for offset, character in enumerate(text) if not character.isspace()} <= covered


HOSTILE = {
    "a log": "The supplier shall deliver goods within thirty days. It must report defects in writing 12.\n",
    "rows": "12;34;56;a\n",
    "marks": "A. ",
    "dots": ".",
    "dots and spaces": ". ",
    "quotes": ".\"'",
    "spaces": "a.   \t  ",
    "many blank lines": "a\n\n\n",
    "page breaks": "\n\f",
    "one word": "x",
}


@pytest.mark.parametrize("by", ["sentences", "paragraphs"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_chunking_time_is_bounded_for_hostile_text(kind: str, by: ChunkBy) -> None:
    text = HOSTILE[kind] * (600_000 // len(HOSTILE[kind]))
    began = time.process_time()
    chunk_spans(text, by, 1_000_000, 999_999, 0)
    assert time.process_time() - began < 5


@given(TEXTS, st.integers(0, 2000))
def test_text_without_sentence_ends_is_split_at_the_maximum_length(text: str, times: int) -> None:
    spans = sentence_spans(text + "a row;of 12\n" * times)
    assert all(0 < end - start <= MAX_SENTENCE_CHARS for start, end in spans)


def test_rows_without_sentence_ends_are_split_between_rows() -> None:
    found = sentences("alpha,beta,gamma,12\n" * 500)
    assert len(found) > 4
    assert all(sentence.startswith("alpha") and sentence.endswith("12") for sentence in found)
    assert [len(part) for part in sentences("x" * 4500)] == [2000, 2000, 500]


@pytest.mark.parametrize("by", ["sentences", "paragraphs"])
def test_chunking_checks_for_cancellation_between_sentences(by: ChunkBy) -> None:
    looks: list[None] = []
    chunk_spans("One here. " * 5000, by, 100, 0, 0, lambda: looks.append(None))
    assert len(looks) > 4
