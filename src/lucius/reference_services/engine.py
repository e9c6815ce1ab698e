"""The OCR engine: RapidOCR with the models of its wheel, one instance per process.

Its classifier of upside-down lines is disabled: it takes long printed lines for upside down and garbles them.
"""

import threading
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from lucius.reference_services.extras import load
from lucius.reference_services.layout import deskew, estimate_skew, text_of
from lucius.reference_services.text import UnreadableInput

if TYPE_CHECKING:
    from PIL.Image import Image

DETECTION_SIDE_PIXELS = 1280
"""Longest side of the page for line detection; lines are recognized at full resolution."""
NO_LIMIT_PIXELS = 100_000
MIN_SIDE_PIXELS = 16
"""Smaller pages hold no print, and the engine would enlarge them without bound."""
MAX_ASPECT_RATIO = 8
"""Width by height. The engine pads wider pages to many times their size, so they are padded less beforehand."""
WHITE = 255
_NO_MEMORY = -4  # cv2.Error.StsNoMem


class OcrText(Struct, frozen=True):
    text: str
    confidence: float
    """Mean over all recognized characters; 0 if there are none."""


class OcrEngine:
    """Recognizes one page at a time; other threads wait."""

    def __init__(self, rapidocr: Any, numpy: Any, image: Any, threads: int) -> None:
        self._numpy = numpy
        self._image = image
        self._input_errors = _input_errors()
        self._lock = threading.Lock()
        self._engine = rapidocr.RapidOCR(
            params={
                "Global.log_level": "critical",
                "Global.use_cls": False,
                "Global.max_side_len": NO_LIMIT_PIXELS,  # pages are bounded before they get here
                "Det.limit_type": "max",
                "Det.limit_side_len": DETECTION_SIDE_PIXELS,
                "Rec.rec_batch_num": 1,  # batching lines of different lengths gains nothing
                "EngineConfig.onnxruntime.intra_op_num_threads": threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )
        self._load()

    def read(self, page: "Image", number: int = 1) -> OcrText:
        """Recognize the text of a greyscale page. Raises UnreadableInput if the engine can't process it."""
        if min(page.size) < MIN_SIDE_PIXELS:
            return OcrText("", 0.0)
        with self._lock:
            try:
                found = self._engine(self._pixels(self._padded(page)))
            except self._input_errors as error:
                if getattr(error, "code", None) == _NO_MEMORY or "alloc" in str(error).lower():
                    raise  # out of memory: not the page's fault
                raise UnreadableInput(
                    f"page {number} can't be read ({type(error).__name__})", code="DAMAGED_INPUT"
                ) from error
        if found.boxes is None or found.txts is None:
            return OcrText("", 0.0)
        quads = [[(float(x), float(y)) for x, y in box] for box in found.boxes]
        angle = estimate_skew(quads)
        text = text_of([deskew(quad, angle, line) for quad, line in zip(quads, found.txts, strict=True)])
        size = sum(len(line) for line in found.txts)
        sure = sum(float(score) * len(line) for score, line in zip(found.scores, found.txts, strict=True))
        return OcrText(text, round(sure / size, 4) if size else 0.0)

    def _padded(self, page: "Image") -> "Image":
        width, height = page.size
        if width <= MAX_ASPECT_RATIO * height:
            return page
        paper: Image = self._image.new("L", (width, -(-width // MAX_ASPECT_RATIO)), WHITE)
        paper.paste(page, (0, (paper.height - height) // 2))
        return paper

    def _load(self) -> None:
        """Load the models now; the library would do so on first use."""
        blank = self._pixels(self._image.new("L", (320, 64), WHITE))
        self._engine(blank)
        self._engine(blank, use_det=False, use_rec=True)
        self._engine(blank, use_det=True, use_rec=True)  # the flags of a call persist

    def _pixels(self, image: "Image") -> Any:
        return self._numpy.asarray(image.convert("RGB"))


def _input_errors() -> tuple[type[Exception], ...]:
    """Return the exception types the engine raises on pixels it can't process."""
    named = (
        ("cv2", "error"),
        ("rapidocr.utils.process_img", "ResizeImgError"),
        ("rapidocr.ch_ppocr_det.utils", "ResizeImgError"),
        ("rapidocr.utils.load_image", "LoadImageError"),
        ("rapidocr.inference_engine.onnxruntime.main", "ONNXRuntimeError"),
    )
    found = [getattr(load(module, "ocr"), name, None) for module, name in named]
    return (*(error for error in found if error is not None), ValueError, IndexError, ArithmeticError)


_engines: dict[int, OcrEngine] = {}
_loading = threading.Lock()


def get_engine(threads: int) -> OcrEngine | None:
    """Return the process's engine, or None without the `ocr` extra. The first call takes one to two seconds."""
    with _loading:
        if not _engines:
            rapidocr, numpy, image = (load(name, "ocr") for name in ("rapidocr", "numpy", "PIL.Image"))
            if None in (rapidocr, numpy, image, load("onnxruntime", "ocr")):
                return None
            _engines[threads] = OcrEngine(rapidocr, numpy, image, threads)
        return next(iter(_engines.values()))
