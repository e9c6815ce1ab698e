"""Reads a YAML or JSON file into plain JSON values and records the line of each.

Used by the adapters that read an operator's files, so that a fault found long after parsing can still name its line.
Every fault is a ProtocolError with file, line and reason.
"""

import copy
import functools
import json
import math
import pathlib
import stat
from typing import Any, TypeVar

import msgspec
import yaml

from lucius.core.protocol.validation.structure import StructureFault, structure_faults
from lucius.ports.errors import ProtocolError

MAX_BYTES = 1024 * 1024
MAX_NODES = 100_000
MAX_DEPTH = 100

Path = tuple[str | int, ...]
Lines = dict[Path, int]
T = TypeVar("T")

_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge")}


class _Loader(yaml.SafeLoader):
    """YAML without dates: a value that JSON can't hold is a plain string here."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class Marked:
    """A file's value, with the line of each part."""

    def __init__(self, file: str, value: Any, lines: Lines) -> None:
        self.file = file
        self.value = value
        self.lines = lines

    def line(self, *path: str | int) -> int:
        """Return the line of a part, or of the nearest part around it that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def error(self, reason: str, path: Path = ()) -> ProtocolError:
        return ProtocolError(reason, file=self.file, line=self.line(*path))

    def convert(self, to: type[T], at: Path = ()) -> T:
        """Convert the value, or the part of it at a path, to a record. Raises ProtocolError with all misfits."""
        value = self.value
        for key in at:
            value = value[key]
        try:
            return msgspec.convert(value, to)
        except msgspec.ValidationError as error:
            misfits = [self._misfit(fault, at) for fault in structure_faults(value, to)]
            raise ProtocolError.joined(misfits or [self.error(str(error))]) from None

    def _misfit(self, fault: StructureFault, at: Path) -> ProtocolError:
        path = (*at, *fault.path)
        around = path[:-1] if fault.reason.startswith("unknown field ") else path
        return self.error(f"{fault.reason}{_within(around)}{fault.hint}", path)


def _within(path: Path) -> str:
    return f" at {'.'.join(map(str, path))}" if path else ""


def read(path: pathlib.Path) -> Marked:
    """Read one file. Raises ProtocolError, and nothing else, for any content."""
    return parse(path, read_bytes(path))


def read_bytes(path: pathlib.Path) -> bytes:
    """Return a file's content for `parse`. Raises ProtocolError if it can't be read or is too large."""
    file = str(path)
    try:
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):  # opening a pipe would block
            raise ProtocolError("is not a regular file", file=file)
        if info.st_size > MAX_BYTES:
            raise ProtocolError(f"is larger than {MAX_BYTES} bytes", file=file)
        return path.read_bytes()
    except OSError as error:
        raise ProtocolError(f"can't be read: {error.strerror}", file=file) from None


def parse(path: pathlib.Path, content: bytes) -> Marked:
    """Parse the content of the file with this path. Raises ProtocolError, and nothing else, for any content."""
    file = str(path)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"is not UTF-8 (byte {error.start})", file=file) from None
    try:
        source = _read_json(file, text) if path.suffix == ".json" else _read_yaml(file, text)
        msgspec.json.encode(source.value)  # or its digest could not be computed later
        return source
    except UnicodeEncodeError:
        raise ProtocolError("has half a surrogate pair, which is no text", file=file) from None
    except RecursionError:
        raise ProtocolError("is nested too deeply", file=file) from None


def _read_json(file: str, text: str) -> Marked:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProtocolError(f"is not JSON: {error.msg}", file=file, line=error.lineno) from None
    except ValueError as error:  # a number with thousands of digits
        raise ProtocolError(f"is not JSON: {error}", file=file) from None
    # JSON is YAML except for tabs, which JSON only has between its parts: as spaces, they leave the lines right.
    return Marked(file, value, _read_yaml(file, text.replace("\t", " ")).lines)


def _read_yaml(file: str, text: str) -> Marked:
    value, lines = _parsed(file, text)
    return Marked(file, copy.deepcopy(value), lines)


@functools.lru_cache(maxsize=64)  # several protocols name the same schema, and a reload finds most files unchanged
def _parsed(file: str, text: str) -> tuple[Any, Lines]:
    lines: Lines = {}
    faults: list[ProtocolError] = []
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise ProtocolError("is empty", file=file, line=1)
        _mark(file, node, (), lines, faults)
        if faults:
            raise ProtocolError.joined(faults)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = f"is not YAML: {error.problem or error.context}"
        raise ProtocolError(reason, file=file, line=mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ProtocolError(f"is not YAML: {str(error).splitlines()[0]}", file=file) from None


def _mark(file: str, node: yaml.Node, path: Path, lines: Lines, faults: list[ProtocolError]) -> None:
    """Record the line of every part, and what JSON can't hold. Raises ProtocolError for a file that is too large."""
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if len(lines) > MAX_NODES or len(path) > MAX_DEPTH:  # also stops aliases that multiply or contain themselves
        raise ProtocolError("is too large or nested too deeply once its aliases are followed", file=file, line=line)
    if node.tag not in _TAGS:
        faults.append(ProtocolError(f"the tag {node.tag} has no place here", file=file, line=line))
    elif isinstance(node, yaml.MappingNode):
        _mark_members(file, node, path, lines, faults)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _mark(file, item, (*path, index), lines, faults)
    elif node.tag.endswith(":float") and not math.isfinite(_float(node.value)):
        faults.append(ProtocolError("JSON has no NaN and no infinity", file=file, line=line))


def _mark_members(file: str, node: yaml.MappingNode, path: Path, lines: Lines, faults: list[ProtocolError]) -> None:
    seen: set[str] = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.tag.endswith(":merge"):
            _mark(file, value, path, lines, faults)
            continue
        if not key.tag.endswith(":str"):
            reason = f"the key {key.value!r} must be text: put it in quotes"
            faults.append(ProtocolError(reason, file=file, line=line))
            continue
        if key.value in seen:
            faults.append(ProtocolError(f"the key {key.value} is given twice", file=file, line=line))
        seen.add(key.value)
        lines[(*path, key.value)] = line
        _mark(file, value, (*path, key.value), lines, faults)


def _float(text: str) -> float:
    try:
        return float(text.replace("_", ""))
    except ValueError:  # .inf, .nan
        return math.nan
