"""The OCR engine: RapidOCR with the models of its wheel, one for the process.

The engine finds boxes around lines and reads each box. Its reader loses characters in boxes that are very long for
their height, as lines of prose are, so we cut those between words and read the parts.
"""

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from lucius.services.extras import load
from lucius.services.layout import Point, slant, text_of, upright

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST_SIDE = 1600
"""The page is reduced to this to find boxes, not to read them."""
LONGEST_BOX = 20
"""Boxes longer than this many times their height are cut."""
WORD_GAP = 0.2
"""Words are at least this part of a line's height apart."""
LEAST_SCORE = 0.5


class Reading(Struct, frozen=True):
    text: str
    confidence: float
    """The mean over the characters read; 0 if there are none."""


class Engine:
    """Reads one page at a time: another thread that wants to waits."""

    def __init__(self, rapidocr: Any, numpy: Any, image: Any, threads: int) -> None:
        self._numpy = numpy
        self._image = image
        self._lock = threading.Lock()
        self._engine = rapidocr.RapidOCR(
            params={
                "Global.log_level": "critical",
                "Global.max_side_len": 8000,  # we bound pages ourselves; boxes are read at full resolution
                "Det.limit_type": "max",
                "Det.limit_side_len": LONGEST_SIDE,
                "Rec.rec_batch_num": 1,  # boxes of different lengths gain nothing from being read together
                "EngineConfig.onnxruntime.intra_op_num_threads": threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        self._warm_up()

    def read(self, page: "Image") -> Reading:
        """The text of a page in shades of grey."""
        with self._lock:
            quads = self._boxes(page)
            found = [self._line(page, quad) for quad in quads]
        angle = slant(quads)
        pieces = [upright(quad, angle, text) for quad, (text, _) in zip(quads, found, strict=True) if text]
        size = sum(len(text) for text, _ in found)
        confidence = sum(score * len(text) for text, score in found) / size if size else 0.0
        return Reading(text_of(pieces), round(confidence, 4))

    def _warm_up(self) -> None:
        """Loads the models, which the library does when it first needs them."""
        blank = self._image.new("L", (320, 64), 255)
        self._boxes(blank)
        self._recognise(blank)

    def _boxes(self, page: "Image") -> list[list[Point]]:
        found = self._engine(self._pixels(page), use_det=True, use_cls=False, use_rec=False)
        return [] if found.boxes is None else [[(float(x), float(y)) for x, y in quad] for quad in found.boxes]

    def _line(self, page: "Image", quad: Sequence[Point]) -> tuple[str, float]:
        """The text in a box, and how sure the engine is of it."""
        parts = [self._recognise(part) for part in self._cut(self._straightened(page, quad))]
        read = [(text, score) for text, score in parts if text and score >= LEAST_SCORE]
        size = sum(len(text) for text, _ in read)
        score = sum(score * len(text) for text, score in read) / size if size else 0.0
        return " ".join(text for text, _ in read), score

    def _recognise(self, part: "Image") -> tuple[str, float]:
        found = self._engine(self._pixels(part), use_det=False, use_cls=False, use_rec=True)
        if not getattr(found, "txts", None):
            return "", 0.0
        return found.txts[0].strip(), float(found.scores[0])

    def _pixels(self, image: "Image") -> Any:
        return self._numpy.asarray(image.convert("RGB"))

    def _straightened(self, page: "Image", quad: Sequence[Point]) -> "Image":
        upper_left, upper_right, lower_right, lower_left = quad
        width = max(_distance(upper_left, upper_right), _distance(lower_left, lower_right), 1.0)
        height = max(_distance(upper_left, lower_left), _distance(upper_right, lower_right), 1.0)
        corners = (*upper_left, *lower_left, *lower_right, *upper_right)
        size = (round(width), round(height))
        return page.transform(size, self._image.Transform.QUAD, corners, self._image.Resampling.BICUBIC)

    def _cut(self, line: "Image") -> list["Image"]:
        width, height = line.size
        count = -(-width // max(1, height * LONGEST_BOX))
        if count < 2:
            return [line]
        pixels = self._numpy.asarray(line)
        dark = (int(pixels.min()) + int(pixels.max())) // 2
        cuts = cuts_between_words((pixels < dark).any(axis=0).tolist(), height, count)
        return [line.crop((start, 0, end, height)) for start, end in pairwise(cuts)]


def cuts_between_words(ink: list[bool], height: int, count: int) -> list[int]:
    """Where to cut a line into so many parts: in the widest gap near each even cut, and at both ends."""
    width = len(ink)
    cuts = [0]
    for number in range(1, count):
        even = width * number // count
        best = (0, even)
        run = 0
        for place in range(max(cuts[-1] + height, even - 3 * height), min(width, even + 3 * height)):
            run = 0 if ink[place] else run + 1
            if run >= WORD_GAP * height and run > best[0]:
                best = (run, place - run // 2)
        if best[1] > cuts[-1]:
            cuts.append(best[1])
    return [*cuts, width]


def _distance(one: Point, other: Point) -> float:
    return float(((one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2) ** 0.5)


_engines: dict[int, Engine] = {}
_loading = threading.Lock()


def engine_of(threads: int) -> Engine | None:
    """The process's engine; None without the `ocr` extra. Takes a second or two the first time."""
    with _loading:
        if not _engines:
            rapidocr, numpy, image = (load(name, "ocr") for name in ("rapidocr", "numpy", "PIL.Image"))
            if None in (rapidocr, numpy, image, load("onnxruntime", "ocr")):
                return None
            _engines[threads] = Engine(rapidocr, numpy, image, threads)
        return next(iter(_engines.values()))
