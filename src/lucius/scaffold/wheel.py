"""Builds a wheel of the running Lucius, so that a new project needs no package index that has it."""

import base64
import hashlib
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

NAME = "lucius"
TAG = "py3-none-any"
_WHEEL = f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: true\nTag: {TAG}\n"
_METADATA = ("METADATA", "entry_points.txt", "licenses/LICENSE")
_EPOCH = (1980, 1, 1, 0, 0, 0)


class NoWheel(Exception):
    """The running Lucius can't be packed; the message says why."""


def wheel_name(version: str) -> str:
    return f"{NAME}-{version}-{TAG}.whl"


def write_wheel(folder: Path) -> Path:
    """Pack the package as installed, from its files and metadata, and return the wheel's path. Downloads nothing.

    Raises NoWheel and OSError.
    """
    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        raise NoWheel(f"{NAME} runs without being installed") from None
    files = _package_files()
    info = f"{NAME}-{installed.version}.dist-info"
    for name in _METADATA:
        if text := installed.read_text(name):
            files[f"{info}/{name}"] = text.encode()
    if f"{info}/METADATA" not in files:
        raise NoWheel(f"the metadata of {NAME} {installed.version} is missing")
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    target = folder / wheel_name(installed.version)
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data)
    return target


def _package_files() -> dict[str, bytes]:
    spec = find_spec(NAME)
    if spec is None or not spec.origin:
        raise NoWheel(f"the files of {NAME} are not in a folder")
    root = Path(spec.origin).parent
    paths = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"{NAME}/{path.relative_to(root).as_posix()}": path.read_bytes() for path in paths}


def _record(files: dict[str, bytes], itself: str) -> bytes:
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    return "\n".join([*lines, f"{itself},,", ""]).encode()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
