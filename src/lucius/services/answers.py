"""Answers in the document's own words, each with its sources; none where the document does not say."""

import re
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from lucius.services.pages import page_at
from lucius.services.retrieval import Index, Query
from lucius.services.sentences import Sentence, sentences_by_chunk
from lucius.services.vectors import Chunk, Vectors

CHUNK_COUNTS = 0.25
"""How much of a sentence's score comes from the chunk it stands in."""
NEARLY_AS_GOOD = 0.85
"""A further sentence is said too if its score is at least this part of the best one's."""
FITTING_KIND = 1.2
"""A sentence that has what the question asks for, a number or a name, is worth this much more."""
_DATE = re.compile(
    r"\b(?:19|20)\d\d\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
    r"|\b(?:jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-z]* \d|\b(?:\w+day|\w+tag)s?\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|\w+teen|\w+ty|hundred|zwei|drei|\w+zig)\b", re.IGNORECASE
)
_NAME = re.compile(r"(?<=\w )[A-ZÄÖÜ]\w+ [A-ZÄÖÜ]\w+")
_ASKS_DATE = re.compile(r"\b(?:when|what date|wann)\b", re.IGNORECASE)
_ASKS_NUMBER = re.compile(r"\bhow (?:long|many|much|often|soon)\b|\bwie (?:lange?|viele?|oft)\b", re.IGNORECASE)
_ASKS_NAME = re.compile(r"\b(?:who|whom|wer|wen|wem)\b", re.IGNORECASE)
_KINDS = ((_ASKS_DATE, _DATE), (_ASKS_NUMBER, _NUMBER), (_ASKS_NAME, _NAME))


class Prompts(Struct, frozen=True):
    """The part of the payload this service heeds."""

    prompt_set: list[str]
    top_k: int = 3
    max_sentences: int = 2
    max_tokens: int = 1024
    min_score: float | None = None
    output_format: Literal["json", "text"] = "json"


class Source(Struct, frozen=True):
    chunk: int
    start: int
    end: int
    score: float
    page: int | None = None


class Answer(Struct, frozen=True, omit_defaults=True):
    """An empty answer means that none was found."""

    prompt: str
    answer: str
    score: float
    sources: list[Source]
    truncated: bool = False
    """A chat model was cut off before it was done."""


class Rated(Struct, frozen=True):
    """A sentence, and how well it fits."""

    sentence: Sentence
    chunk: int
    score: float


class Reader:
    """Finds the sentences of a document that answer a prompt."""

    def __init__(self, vectors: Vectors, index: Index, between: Callable[[], None] = lambda: None) -> None:
        self._index = index
        self._pages = vectors.pages
        sentences = sentences_by_chunk(vectors.chunks, vectors.pages, between)
        self._sentences = {chunk.index: found for chunk, found in zip(vectors.chunks, sentences, strict=True)}

    def answer(self, prompt: str, prompts: Prompts) -> Answer:
        """The best sentences of the best chunks, in the order of the document."""
        query = self._index.query(prompt)
        found = self._index.nearest(query, prompts.top_k)
        rated = sorted(self._rated(prompt, query, found), key=lambda one: (-one.score, one.sentence.place))
        least = self._index.model.least_score if prompts.min_score is None else prompts.min_score
        best = rated[0].score if rated else 0.0
        if not rated or best < least:
            return Answer(prompt, "", round(best, 4), [])
        enough = max(least, best * NEARLY_AS_GOOD)
        said = [one.sentence for one in rated[: prompts.max_sentences] if one.score >= enough]
        words = " ".join(sentence.text for sentence in sorted(said, key=lambda sentence: sentence.place)).split()
        sources = self._sources(found, rated)
        return Answer(prompt, " ".join(words[: prompts.max_tokens]), round(best, 4), sources)

    def _rated(self, prompt: str, query: Query, found: list[tuple[float, Chunk]]) -> list[Rated]:
        """Every sentence of these chunks once, though chunks overlap."""
        places: dict[int, tuple[Sentence, int, float]] = {}
        for score, chunk in found:
            for sentence in self._sentences[chunk.index]:
                places.setdefault(sentence.place, (sentence, chunk.index, score))
        wanted = next((kind for asks, kind in _KINDS if asks.search(prompt)), None)
        scores = self._index.scores(query, [sentence.in_context for sentence, _, _ in places.values()])
        rated: list[Rated] = []
        for (sentence, chunk_index, chunk_score), score in zip(places.values(), scores, strict=True):
            blended = (1 - CHUNK_COUNTS) * score + CHUNK_COUNTS * chunk_score
            fits = FITTING_KIND if wanted and wanted.search(sentence.text) else 1.0
            rated.append(Rated(sentence, chunk_index, min(1.0, fits * blended)))
        return rated

    def _sources(self, found: list[tuple[float, Chunk]], rated: list[Rated]) -> list[Source]:
        """Chunks by their best sentence, and the page it is on."""
        best: dict[int, Rated] = {}
        for one in rated:
            best.setdefault(one.chunk, one)
        sources = [
            source_of(chunk, best[chunk.index].score, page_at(self._pages, best[chunk.index].sentence.place))
            for _, chunk in found
            if chunk.index in best
        ]
        return sorted(sources, key=lambda source: (-source.score, source.chunk))


def source_of(chunk: Chunk, score: float, page: int | None) -> Source:
    return Source(chunk.index, chunk.start, chunk.end, round(score, 4), page)
