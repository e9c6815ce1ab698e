"""Extractive answers: sentences of the document, each with its sources; empty if the document has no answer."""

import re
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from lucius.reference_services.pages import page_at
from lucius.reference_services.retrieval import ChunkIndex, Query
from lucius.reference_services.sentences import Sentence, sentences_by_chunk
from lucius.reference_services.vectors import Chunk, Vectors

CHUNK_WEIGHT = 0.25
"""Share of a sentence's score that comes from the score of its chunk."""
FURTHER_SENTENCE_RATIO = 0.85
"""A further sentence is included if its score is at least this share of the best one's."""
KIND_MATCH_FACTOR = 1.2
"""Factor on the score of a sentence that contains the kind of value asked for: a date, a number or a name."""
_DATE = re.compile(
    r"\b(?:19|20)\d\d\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
    r"|\b(?:jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-z]* \d|\b(?:\w+day|\w+tag)s?\b",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|\w+teen|\w+ty|hundred|zwei|drei|\w+zig)\b", re.IGNORECASE
)
_NAME = re.compile(r"(?<=\w )[A-ZÄÖÜ]\w+ [A-ZÄÖÜ]\w+")
_DATE_QUESTION = re.compile(r"\b(?:when|what date|wann)\b", re.IGNORECASE)
_NUMBER_QUESTION = re.compile(r"\bhow (?:long|many|much|often|soon)\b|\bwie (?:lange?|viele?|oft)\b", re.IGNORECASE)
_NAME_QUESTION = re.compile(r"\b(?:who|whom|wer|wen|wem)\b", re.IGNORECASE)
_KINDS = ((_DATE_QUESTION, _DATE), (_NUMBER_QUESTION, _NUMBER), (_NAME_QUESTION, _NAME))


class Prompts(Struct, frozen=True):
    """The payload members that SIS uses."""

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


class PromptAnswer(Struct, frozen=True, omit_defaults=True):
    """The answer to one prompt; `answer` is empty if none was found."""

    prompt: str
    answer: str
    score: float
    sources: list[Source]
    truncated: bool = False
    """Whether the chat model was cut off before it had finished."""


class RankedSentence(Struct, frozen=True):
    """A sentence and its score for one prompt."""

    sentence: Sentence
    chunk: int
    score: float


class AnswerFinder:
    """Finds the sentences of a document that answer a prompt."""

    def __init__(self, vectors: Vectors, index: ChunkIndex, checkpoint: Callable[[], None] = lambda: None) -> None:
        self._index = index
        self._pages = vectors.pages
        sentences = sentences_by_chunk(vectors.chunks, vectors.pages, checkpoint)
        self._sentences = {chunk.index: found for chunk, found in zip(vectors.chunks, sentences, strict=True)}

    def answer(self, prompt: str, prompts: Prompts) -> PromptAnswer:
        """Answer with the best sentences of the best chunks, in document order."""
        query = self._index.query(prompt)
        found = self._index.nearest(query, prompts.top_k)
        ranked = sorted(self._rank(prompt, query, found), key=lambda one: (-one.score, one.sentence.offset))
        min_score = self._index.model.default_min_score if prompts.min_score is None else prompts.min_score
        best = ranked[0].score if ranked else 0.0
        if not ranked or best < min_score:
            return PromptAnswer(prompt, "", round(best, 4), [])
        enough = max(min_score, best * FURTHER_SENTENCE_RATIO)
        chosen = [one.sentence for one in ranked[: prompts.max_sentences] if one.score >= enough]
        words = " ".join(sentence.text for sentence in sorted(chosen, key=lambda sentence: sentence.offset)).split()
        sources = self._sources(found, ranked)
        return PromptAnswer(prompt, " ".join(words[: prompts.max_tokens]), round(best, 4), sources)

    def _rank(self, prompt: str, query: Query, found: list[tuple[float, Chunk]]) -> list[RankedSentence]:
        """Score every sentence of these chunks once, although chunks overlap."""
        by_offset: dict[int, tuple[Sentence, int, float]] = {}
        for score, chunk in found:
            for sentence in self._sentences[chunk.index]:
                by_offset.setdefault(sentence.offset, (sentence, chunk.index, score))
        kind = next((kind for question, kind in _KINDS if question.search(prompt)), None)
        scores = self._index.scores(query, [sentence.in_context for sentence, _, _ in by_offset.values()])
        ranked: list[RankedSentence] = []
        for (sentence, chunk_index, chunk_score), score in zip(by_offset.values(), scores, strict=True):
            blended = (1 - CHUNK_WEIGHT) * score + CHUNK_WEIGHT * chunk_score
            factor = KIND_MATCH_FACTOR if kind and kind.search(sentence.text) else 1.0
            ranked.append(RankedSentence(sentence, chunk_index, min(1.0, factor * blended)))
        return ranked

    def _sources(self, found: list[tuple[float, Chunk]], ranked: list[RankedSentence]) -> list[Source]:
        """List the chunks by the score of their best sentence, with the page that sentence is on."""
        best: dict[int, RankedSentence] = {}
        for one in ranked:
            best.setdefault(one.chunk, one)
        sources = [
            make_source(chunk, best[chunk.index].score, page_at(self._pages, best[chunk.index].sentence.offset))
            for _, chunk in found
            if chunk.index in best
        ]
        return sorted(sources, key=lambda source: (-source.score, source.chunk))


def make_source(chunk: Chunk, score: float, page: int | None) -> Source:
    return Source(chunk.index, chunk.start, chunk.end, round(score, 4), page)
