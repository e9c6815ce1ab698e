"""Ranks chunks and sentences of a document by their relevance to a prompt.

The score blends the cosine similarity of the vectors with the share of the prompt's words that occur, weighted by
rarity: vectors capture what words mean, but little of names and numbers.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from lucius.reference_services.extras import load
from lucius.reference_services.models import Hashing, Model, Models, Vector
from lucius.reference_services.vectors import Chunk, Vectors

STEM_CHARS = 6
"""Words with the same first letters count as forms of the same word."""
_WORD = re.compile(r"\w+")
_STOP_WORD_TEXT = """
a an and are as at be been by can did do does for from had has have how i in is it its long many may me much must my of
often on or our shall should soon than that the their them there these they this those to was we were what when where
which who whom whose why will with would you your
auf bei bis das dem den der des die ein eine für hat ist im in mit nach sich sind und von wann was welche welcher
welches wer wie wird wo zu zum zur
"""
_STOP_WORDS = frozenset(_STOP_WORD_TEXT.split())


class Query(Struct, frozen=True):
    vector: Vector
    words: dict[str, float]
    """Stem of each word and its weight."""


class ChunkIndex:
    """Search index over the chunks of one document."""

    def __init__(self, vectors: Vectors, models: Models) -> None:
        self._vectors = vectors
        self.model, rows = _select_vectors(vectors, models)
        self._numpy: Any = load("numpy", "sis")
        self._rows: Any = self._numpy.array(rows, dtype="float32") if self._numpy and rows else rows
        self._words = [extract_stems(chunk.text) for chunk in vectors.chunks]
        self._chunk_counts = Counter(word for words in self._words for word in words)
        self._sentence_vectors: dict[str, Vector] = {}

    def query(self, prompt: str) -> Query:
        text = prompt
        if isinstance(self.model, Hashing):  # hashing weighs "the" as much as "invoice"
            text = " ".join(word for word in _WORD.findall(prompt) if word.lower() not in _STOP_WORDS)
        return Query(self.model.embed([text])[0], {word: self._weight(word) for word in extract_stems(prompt)})

    def nearest(self, query: Query, count: int) -> list[tuple[float, Chunk]]:
        """Return up to `count` chunks with a positive score, best first."""
        nearness = self._cosines(query.vector)
        scores = [
            self._blend(near, _word_overlap(query, words)) for near, words in zip(nearness, self._words, strict=True)
        ]
        ranked = sorted(zip(scores, self._vectors.chunks, strict=True), key=lambda found: (-found[0], found[1].index))
        return [(score, chunk) for score, chunk in ranked[:count] if score > 0]

    def scores(self, query: Query, sentences: Sequence[str]) -> list[float]:
        """Score sentences of the document; their vectors are cached across prompts."""
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._sentence_vectors]
        self._sentence_vectors.update(zip(new, self.model.embed(new), strict=True))
        return [
            self._blend(
                cosine(query.vector, self._sentence_vectors[sentence]), _word_overlap(query, extract_stems(sentence))
            )
            for sentence in sentences
        ]

    def _cosines(self, vector: Vector) -> list[float]:
        if self._numpy is None or not len(self._rows):
            return [cosine(vector, row) for row in self._rows]
        found: list[float] = (self._rows @ self._numpy.array(vector, dtype="float32")).tolist()
        return found

    def _blend(self, nearness: float, share: float) -> float:
        return (1 - self.model.word_weight) * max(0.0, nearness) + self.model.word_weight * share

    def _weight(self, word: str) -> float:
        """Weigh a word by rarity; a word absent from the document counts as one that occurs once."""
        count = max(1, self._chunk_counts[word])
        return math.log(1 + (len(self._words) - count + 0.5) / (count + 0.5))


def _select_vectors(vectors: Vectors, models: Models) -> tuple[Model, list[Vector]]:
    """Return the model that made the vectors, and the vectors; if it is not installed, hashing with new vectors.

    A prompt can only be compared with vectors of the same model.
    """
    model = models.find(vectors.model)
    if model is not None and model.dimensions == vectors.dimensions:
        return model, [chunk.vector for chunk in vectors.chunks]
    hashing = Hashing()
    return hashing, hashing.embed([chunk.text for chunk in vectors.chunks])


def extract_stems(text: str) -> frozenset[str]:
    """Return the stems of a text's words without stop words."""
    return frozenset(_stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS)


def _stem(word: str) -> str:
    return (word[:-1] if len(word) > 3 and word[-1] == "s" else word)[:STEM_CHARS]


def cosine(one: Vector, other: Vector) -> float:
    """Compute the cosine similarity of two unit vectors."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def _word_overlap(query: Query, words: frozenset[str]) -> float:
    total = sum(query.words.values())
    return sum(weight for word, weight in query.words.items() if word in words) / total if total else 0.0
