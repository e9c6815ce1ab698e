"""Finding the parts of a document that have to do with a prompt.

A part's score is how near its vector is to the prompt's, blended with how many of the prompt's words it has, rare ones
counting for more: vectors know what words mean, but little of names and numbers.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from lucius.services.extras import load
from lucius.services.models import Hashing, Model, Models, Vector
from lucius.services.vectors import Chunk, Vectors

STEM = 6
"""Words that begin alike are taken for forms of the same word."""
_WORD = re.compile(r"\w+")
_SMALL = """
a an and are as at be been by can did do does for from had has have how i in is it its long many may me much must my of
often on or our shall should soon than that the their them there these they this those to was we were what when where
which who whom whose why will with would you your
auf bei bis das dem den der des die ein eine für hat ist im in mit nach sich sind und von wann was welche welcher
welches wer wie wird wo zu zum zur
"""
_SMALL_WORDS = frozenset(_SMALL.split())


class Query(Struct, frozen=True):
    vector: Vector
    words: dict[str, float]
    """With the weight of each."""


class Index:
    """A document's chunks, ready to be asked about."""

    def __init__(self, vectors: Vectors, models: Models) -> None:
        self._vectors = vectors
        self.model, rows = _usable(vectors, models)
        self._numpy: Any = load("numpy", "sis")
        self._rows: Any = self._numpy.array(rows, dtype="float32") if self._numpy and rows else rows
        self._words = [words_in(chunk.text) for chunk in vectors.chunks]
        self._spread = Counter(word for words in self._words for word in words)
        self._known: dict[str, Vector] = {}

    def query(self, prompt: str) -> Query:
        text = prompt
        if isinstance(self.model, Hashing):  # to it, "the" in a prompt is as much as "invoice"
            text = " ".join(word for word in _WORD.findall(prompt) if word.lower() not in _SMALL_WORDS)
        return Query(self.model.embed([text])[0], {word: self._weight(word) for word in words_in(prompt)})

    def nearest(self, query: Query, count: int) -> list[tuple[float, Chunk]]:
        """The best chunks that have to do with the query at all, the best first."""
        nearness = self._cosines(query.vector)
        scores = [self._blend(near, _share(query, words)) for near, words in zip(nearness, self._words, strict=True)]
        ranked = sorted(zip(scores, self._vectors.chunks, strict=True), key=lambda found: (-found[0], found[1].index))
        return [(score, chunk) for score, chunk in ranked[:count] if score > 0]

    def scores(self, query: Query, sentences: Sequence[str]) -> list[float]:
        """Of sentences of the document; what they are near to is remembered from prompt to prompt."""
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._known]
        self._known.update(zip(new, self.model.embed(new), strict=True))
        return [
            self._blend(cosine(query.vector, self._known[sentence]), _share(query, words_in(sentence)))
            for sentence in sentences
        ]

    def _cosines(self, vector: Vector) -> list[float]:
        if self._numpy is None or not len(self._rows):
            return [cosine(vector, row) for row in self._rows]
        found: list[float] = (self._rows @ self._numpy.array(vector, dtype="float32")).tolist()
        return found

    def _blend(self, nearness: float, share: float) -> float:
        return (1 - self.model.words_count) * max(0.0, nearness) + self.model.words_count * share

    def _weight(self, word: str) -> float:
        """Rare words say more; a word that the document does not have weighs as one that it has once."""
        count = max(1, self._spread[word])
        return math.log(1 + (len(self._words) - count + 0.5) / (count + 0.5))


def _usable(vectors: Vectors, models: Models) -> tuple[Model, list[Vector]]:
    """The model that made the vectors, with them; else hashing, with vectors of its own for the chunks' texts.

    A prompt can only be compared with vectors of the same model, and we may not have it.
    """
    model = models.named(vectors.model)
    if model is not None and model.dimensions == vectors.dimensions:
        return model, [chunk.vector for chunk in vectors.chunks]
    hashing = Hashing()
    return hashing, hashing.embed([chunk.text for chunk in vectors.chunks])


def words_in(text: str) -> frozenset[str]:
    """What the words of a text begin with, small words left out."""
    return frozenset(_stem(word) for word in _WORD.findall(text.lower()) if word not in _SMALL_WORDS)


def _stem(word: str) -> str:
    return (word[:-1] if len(word) > 3 and word[-1] == "s" else word)[:STEM]


def cosine(one: Vector, other: Vector) -> float:
    """For vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def _share(query: Query, words: frozenset[str]) -> float:
    total = sum(query.words.values())
    return sum(weight for word, weight in query.words.items() if word in words) / total if total else 0.0
