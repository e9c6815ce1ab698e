"""Settings of the shipped services beyond `WorkerSettings`, read once from the environment."""

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from lucius.worker.settings import BadSetting

AUTO = "auto"
MAX_THREADS = 64
MAX_TIMEOUT_SECONDS = 3600.0


class ChatSettings(Struct, frozen=True, kw_only=True):
    """An OpenAI-compatible endpoint that writes the answers."""

    base_url: str
    model: str
    api_key: str = ""
    timeout_seconds: float = 120.0

    def __repr__(self) -> str:
        """Omit the key, since settings end up in logs."""
        return f"ChatSettings(base_url={self.base_url!r}, model={self.model!r})"


class ServiceSettings(Struct, frozen=True, kw_only=True):
    ocr_engine: Literal["auto", "off"] = "auto"
    """`auto`: the engine of the `ocr` extra, if it is installed."""
    embedding_model: str = AUTO
    """Model of steps that name none. `auto`: the sentence encoder if it is installed, else `hash`."""
    threads: int = 1
    """Threads per model computation. More finish one page sooner but use the cores less efficiently."""
    chat: ChatSettings | None = None
    """None: answers are sentences of the document."""


def settings_from(environ: Mapping[str, str]) -> ServiceSettings:
    """Read the settings from environment variables. Raises BadSetting."""
    engine = environ.get("LUCIUS_OCR_ENGINE") or AUTO
    if engine not in ("auto", "off"):
        raise BadSetting(f"LUCIUS_OCR_ENGINE must be auto or off, not {engine!r}")
    return ServiceSettings(
        ocr_engine="off" if engine == "off" else "auto",
        embedding_model=environ.get("LUCIUS_EMBEDDING_MODEL") or AUTO,
        threads=int(_number(environ, "LUCIUS_MODEL_THREADS", 1, 1, MAX_THREADS)),
        chat=_chat_from(environ),
    )


def _chat_from(environ: Mapping[str, str]) -> ChatSettings | None:
    base_url = environ.get("LUCIUS_SIS_BASE_URL", "").rstrip("/")
    if not base_url:
        return None
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise BadSetting("LUCIUS_SIS_BASE_URL must be http(s)://host[:port]/path, without credentials or a query")
    model = environ.get("LUCIUS_SIS_MODEL", "")
    if not model:
        raise BadSetting("LUCIUS_SIS_BASE_URL needs LUCIUS_SIS_MODEL: the name of the model there")
    return ChatSettings(
        base_url=base_url,
        model=model,
        api_key=environ.get("LUCIUS_SIS_API_KEY", "").strip(),
        timeout_seconds=_number(environ, "LUCIUS_SIS_TIMEOUT", 120.0, 1, MAX_TIMEOUT_SECONDS),
    )


def _number(environ: Mapping[str, str], name: str, default: float, minimum: float, maximum: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not minimum <= number <= maximum:
        raise BadSetting(f"{name} must be a number from {minimum} to {maximum}, not {text!r}")
    return number
