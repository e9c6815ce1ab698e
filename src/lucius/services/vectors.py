"""Chunks and feature-hashing vectors: deterministic, and without a model to download.

A word's CRC-32 picks a dimension and a sign; a text's vector is the sum over its words, damped by their frequency and
scaled to length 1. Texts that share words point the same way, which is all that ranking needs here.
"""

import math
import re
import zlib
from collections import Counter

import msgspec

MAX_CHUNKS = 20_000
_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"[^.!?\n\f]+[.!?]*")


class Chunk(msgspec.Struct, frozen=True):
    index: int
    start: int
    end: int
    text: str
    vector: list[float]


class Vectors(msgspec.Struct, frozen=True, kw_only=True):
    """vectors.json. `model` is what was used, whatever was asked for: there is only this one."""

    model: str
    dimensions: int
    chunk_size: int
    chunk_overlap: int
    chunks: list[Chunk]


class Chunking(msgspec.Struct, frozen=True):
    """The part of a step's payload that says how to cut and hash."""

    chunk_size: int = 800
    chunk_overlap: int | None = None
    dimensions: int = 256

    @property
    def overlap(self) -> int:
        """An eighth of a chunk unless told: a client that asks for small chunks need not think of it."""
        return self.chunk_size // 8 if self.chunk_overlap is None else self.chunk_overlap


def embed_document(text: str, chunking: Chunking) -> Vectors:
    step = chunking.chunk_size - chunking.overlap
    starts = range(0, max(1, len(text) - chunking.overlap), step)
    pieces = [(start, text[start : start + chunking.chunk_size]) for start in starts]
    chunks = [
        Chunk(index, start, start + len(piece), piece, embed(piece, chunking.dimensions))
        for index, (start, piece) in enumerate(pieces)
    ]
    return Vectors(
        model=f"hash-{chunking.dimensions}",
        dimensions=chunking.dimensions,
        chunk_size=chunking.chunk_size,
        chunk_overlap=chunking.overlap,
        chunks=chunks,
    )


def chunk_count(length: int, chunking: Chunking) -> int:
    step = chunking.chunk_size - chunking.overlap
    return -(-max(1, length - chunking.overlap) // step)


def embed(text: str, dimensions: int) -> list[float]:
    vector = [0.0] * dimensions
    for word, count in Counter(_WORD.findall(text.lower())).items():
        mark = zlib.crc32(word.encode())
        vector[(mark >> 1) % dimensions] += (1.0 + math.log(count)) * (1.0 if mark & 1 else -1.0)
    length = math.sqrt(sum(value * value for value in vector))
    return [round(value / length, 6) for value in vector] if length else vector


def cosine(one: list[float], other: list[float]) -> float:
    """For vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def sentences(text: str) -> list[str]:
    return [sentence for found in _SENTENCE.findall(text) if (sentence := found.strip())]
