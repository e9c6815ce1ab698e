"""The OCR engine: RapidOCR with the models of its wheel, one for the process.

Its classifier of upside-down lines is left out: it takes long lines of print for upside down, and garbles them.
"""

import threading
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from lucius.services.extras import load
from lucius.services.layout import slant, text_of, upright
from lucius.services.text import NotText

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST_SIDE = 1280
"""The page is reduced to this to find its lines; they are read at full resolution."""
UNBOUNDED = 100_000
THINNEST = 16
"""No print fits into fewer pixels, and the engine would blow them up to any size."""
WIDEST = 8
"""Times as wide as high. The engine pads wider pages to many times their size; we pad them first, and to less."""
WHITE = 255
_NO_MEMORY = -4  # cv2.Error.StsNoMem


class Reading(Struct, frozen=True):
    text: str
    confidence: float
    """The mean over the characters read; 0 if there are none."""


class Engine:
    """Reads one page at a time: another thread that wants to waits."""

    def __init__(self, rapidocr: Any, numpy: Any, image: Any, threads: int) -> None:
        self._numpy = numpy
        self._image = image
        self._errors = _errors()
        self._lock = threading.Lock()
        self._engine = rapidocr.RapidOCR(
            params={
                "Global.log_level": "critical",
                "Global.use_cls": False,
                "Global.max_side_len": UNBOUNDED,  # we bound pages ourselves
                "Det.limit_type": "max",
                "Det.limit_side_len": LONGEST_SIDE,
                "Rec.rec_batch_num": 1,  # lines of different lengths gain nothing from being read together
                "EngineConfig.onnxruntime.intra_op_num_threads": threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        self._load()

    def read(self, page: "Image", number: int = 1) -> Reading:
        """The text of a page in shades of grey. Raises NotText for what the engine can't work on."""
        if min(page.size) < THINNEST:
            return Reading("", 0.0)
        with self._lock:
            try:
                found = self._engine(self._pixels(self._padded(page)))
            except self._errors as error:
                if getattr(error, "code", None) == _NO_MEMORY or "alloc" in str(error).lower():
                    raise  # ours, and not the page's
                raise NotText(f"page {number} can't be read ({type(error).__name__})", code="DAMAGED_INPUT") from error
        if found.boxes is None or found.txts is None:
            return Reading("", 0.0)
        quads = [[(float(x), float(y)) for x, y in box] for box in found.boxes]
        angle = slant(quads)
        text = text_of([upright(quad, angle, line) for quad, line in zip(quads, found.txts, strict=True)])
        size = sum(len(line) for line in found.txts)
        sure = sum(float(score) * len(line) for score, line in zip(found.scores, found.txts, strict=True))
        return Reading(text, round(sure / size, 4) if size else 0.0)

    def _padded(self, page: "Image") -> "Image":
        width, height = page.size
        if width <= WIDEST * height:
            return page
        paper: Image = self._image.new("L", (width, -(-width // WIDEST)), WHITE)
        paper.paste(page, (0, (paper.height - height) // 2))
        return paper

    def _load(self) -> None:
        """The library loads a model when it first needs it: that is now."""
        blank = self._pixels(self._image.new("L", (320, 64), WHITE))
        self._engine(blank)
        self._engine(blank, use_det=False, use_rec=True)
        self._engine(blank, use_det=True, use_rec=True)  # what a call says stays said

    def _pixels(self, image: "Image") -> Any:
        return self._numpy.asarray(image.convert("RGB"))


def _errors() -> tuple[type[Exception], ...]:
    """What the engine raises on pixels that it does not expect."""
    named = (
        ("cv2", "error"),
        ("rapidocr.utils.process_img", "ResizeImgError"),
        ("rapidocr.ch_ppocr_det.utils", "ResizeImgError"),
        ("rapidocr.utils.load_image", "LoadImageError"),
        ("rapidocr.inference_engine.onnxruntime.main", "ONNXRuntimeError"),
    )
    found = [getattr(load(module, "ocr"), name, None) for module, name in named]
    return (*(error for error in found if error is not None), ValueError, IndexError, ArithmeticError)


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
