"""Protocols from folders of YAML and JSON files, one protocol version in each.

The shipped folder comes first and the operator's after it, which adds request types, and newer versions of
shipped ones. A file that is wrong is refused by itself: the other files load, and if it was good before, what it
said then stays in force until it is mended or removed.

    payload_schema: {...}               a JSON Schema in place
    payload_schema: schemas/ocr.yaml    or in a file below the folder, put in place when the protocol is read

The same goes for input_schema and output_schema.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from lucius.adapters import marked
from lucius.adapters.marked import Marked
from lucius.adapters.protocol_check import findings
from lucius.core.check import Finding
from lucius.core.protocol import Protocol
from lucius.core.tools import Tools
from lucius.ports.errors import ProtocolError

SHIPPED = Path(__file__).parent.parent / "protocols"
SUFFIXES = (".yaml", ".yml", ".json")

Signature = tuple[int, int, int, int]
Where = tuple[str | int, ...]


class _File(Struct):
    """What a file says (`candidate`), what of it is in force (`good`), and why the two differ (`problem`)."""

    candidate: Protocol | None = None
    good: Protocol | None = None
    problem: ProtocolError | None = None
    line: int = 1


class ProtocolsDir:
    """A ProtocolSource over folders. Loads at once; `refresh` looks for changes."""

    def __init__(self, tools: Tools, *folders: Path, shipped: bool = True) -> None:
        self._tools = tools
        self._folders = ([SHIPPED] if shipped else []) + list(folders)
        self._seen: dict[Path, Signature] = {}
        self._files: dict[Path, _File] = {}
        self._folder_problems: list[ProtocolError] = []
        self._index = _Index()
        self.refresh()

    def resolve(self, request_type: str, version: int | None = None) -> Protocol | None:
        return self._index.resolve(request_type, version)

    def list(self) -> tuple[Protocol, ...]:
        return self._index.list()

    def problems(self) -> tuple[ProtocolError, ...]:
        return (*self._folder_problems, *(file.problem for file in self._files.values() if file.problem))

    def place(self, protocol: Protocol) -> tuple[str, int | None]:
        found = ((str(path), file.line) for path, file in self._files.items() if file.good is protocol)
        return next(found, ("", None))

    def refresh(self) -> bool:
        self._folder_problems = []
        seen = {path: signature for folder in self._folders for path, signature in self._scan(folder)}
        if seen == self._seen:
            return False
        changed = {path for path in seen.keys() | self._seen.keys() if seen.get(path) != self._seen.get(path)}
        # Any protocol may have taken its schema from a changed file below the folder, so all are read again then.
        read_all = any(path.parent not in self._folders for path in changed)
        protocols = [path for path in seen if path.parent in self._folders]
        self._files = {
            path: _read_again(self._files.get(path), path, self._tools)
            if read_all or path in changed or path not in self._files
            else self._files[path]
            for path in protocols
        }
        self._index = _put_in_force(self._files)
        self._seen = seen
        return True

    def _scan(self, folder: Path) -> Iterator[tuple[Path, Signature]]:
        try:
            yield from _signatures(folder)
            if (folder / "schemas").is_dir():
                yield from _signatures(folder / "schemas")
        except OSError as error:
            self._folder_problems.append(ProtocolError(f"can't be read: {error.strerror}", file=str(folder)))


def _signatures(folder: Path) -> Iterator[tuple[Path, Signature]]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.name.startswith(".") or not entry.name.endswith(SUFFIXES):
            continue
        try:
            info = entry.stat()
        except OSError:  # gone again, or a dangling link
            continue
        if stat.S_ISREG(info.st_mode):
            yield Path(entry.path), (info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino)


def _read_again(before: _File | None, path: Path, tools: Tools) -> _File:
    file = _File(good=before.good if before else None)
    try:
        read = read_file(path, tools)
        file.candidate, file.line = read.protocol, read.line
    except ProtocolError as problem:
        file.problem = problem
    if file.candidate == file.good:  # the same object again, so that what is cached for it stays cached
        file.candidate = file.good
    return file


def _put_in_force(files: dict[Path, _File]) -> "_Index":
    """Files that say what they said before keep their place; of the others, the first to claim a name gets it."""
    index = _Index()
    for path, file in sorted(files.items(), key=lambda item: item[1].good is None or item[1].candidate != item[1].good):
        _settle(index, path, file)
    return index


def _settle(index: "_Index", path: Path, file: _File) -> None:
    previous, file.good = file.good, None
    if file.candidate is not None:
        clash = index.clash(file.candidate)
        file.problem = ProtocolError(clash, file=str(path), line=file.line) if clash else None
        file.good = None if clash else file.candidate
    if file.good is None and previous is not None and index.clash(previous) is None:
        file.good = previous
    if file.good is not None:
        index.add(file.good, path)


class _Index:
    """Protocols by request type and alias, and which file gave them."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, Protocol]] = {}
        self._newest: dict[str, Protocol] = {}
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._paths: dict[tuple[str, int], Path] = {}

    def resolve(self, name: str, version: int | None) -> Protocol | None:
        request_type = self._names.get(name)
        if request_type is None:
            return None
        return self._newest[request_type] if version is None else self._versions[request_type].get(version)

    def list(self) -> tuple[Protocol, ...]:
        return tuple(
            protocol for _, versions in sorted(self._versions.items()) for _, protocol in sorted(versions.items())
        )

    def clash(self, protocol: Protocol) -> str | None:
        """Why this protocol can't stand beside those already here."""
        kind, version = protocol.request_type, protocol.version
        if other := self._paths.get((kind, version)):
            return f"version {version} of {kind} is already given by {other}; use a higher version to replace it"
        for name in (kind, *protocol.aliases):
            if self._names.get(name, kind) != kind:
                return f"the name {name} already stands for {self._names[name]}"
        if self._ids.get(protocol.protocol_id, kind) != kind:
            return f"the protocol_id {protocol.protocol_id} already belongs to {self._ids[protocol.protocol_id]}"
        for other_version in self._versions.get(kind, {}).values():
            if other_version.protocol_id != protocol.protocol_id:
                return f"{kind} already has the protocol_id {other_version.protocol_id}"
        return None

    def add(self, protocol: Protocol, path: Path) -> None:
        kind = protocol.request_type
        self._versions.setdefault(kind, {})[protocol.version] = protocol
        if protocol.version >= self._newest.get(kind, protocol).version:
            self._newest[kind] = protocol
        self._names.update(dict.fromkeys((kind, *protocol.aliases), kind))
        self._ids[protocol.protocol_id] = kind
        self._paths[kind, protocol.version] = path


class ProtocolFile(Struct, frozen=True):
    """A protocol, the line that names it, and what its author should know although nothing is wrong."""

    protocol: Protocol
    line: int
    warnings: tuple[ProtocolError, ...]


def read_protocol(path: Path, tools: Tools) -> Protocol:
    """One file as a protocol. Raises ProtocolError with file, line and reason."""
    return read_file(path, tools).protocol


def read_file(path: Path, tools: Tools) -> ProtocolFile:
    """Raises ProtocolError with file, line and reason."""
    source = marked.read(path)
    included = _include_schemas(source, path.parent)
    protocol = source.convert(Protocol)
    found = [(finding, _located(finding, source, included)) for finding in findings(protocol, tools)]
    for finding, error in found:
        if finding.fatal:
            raise error
    return ProtocolFile(protocol, source.line("request_type"), tuple(warning for _, warning in found))


def _located(finding: Finding, source: Marked, included: dict[Where, Marked]) -> ProtocolError:
    """With the file and line that it is about: that of the schema, if it stands in a file of its own."""
    for where, schema in included.items():
        if finding.path[: len(where)] == where:
            return schema.error(finding.reason, finding.path[len(where) :])
    return source.error(finding.reason, finding.path)


def _include_schemas(source: Marked, folder: Path) -> dict[Where, Marked]:
    """Put schemas that are named by file in place; answers them by their place, for the lines of their faults."""
    included = {}
    for where, holder in _holders(source.value):
        name = holder.get(str(where[-1]))
        if not isinstance(name, str):
            continue
        path = folder / "schemas" / Path(name).name
        if name != f"schemas/{path.name}" or path.suffix not in SUFFIXES:
            reason = f"{where[-1]} must be a JSON Schema or name a file as in schemas/x.yaml: {name}"
            raise source.error(reason, where)
        if not path.is_file():
            raise source.error(f"there is no file {path}", where)
        included[where] = marked.read(path)
        holder[str(where[-1])] = included[where].value
    return included


def _holders(document: Any) -> Iterator[tuple[Where, dict[str, Any]]]:
    """Everything in a document, which may be no protocol at all, that can have a schema, and where the schema is."""
    if isinstance(document, dict):
        yield ("input_schema",), document
        yield ("output_schema",), document
        yield from _steps_in(document.get("steps"), ("steps",))


def _steps_in(steps: Any, at: Where) -> Iterator[tuple[Where, dict[str, Any]]]:
    for index, step in enumerate(steps if isinstance(steps, list) else ()):
        yield from _step_at(step, (*at, index))


def _step_at(step: Any, at: Where) -> Iterator[tuple[Where, dict[str, Any]]]:
    if not isinstance(step, dict):
        return
    yield (*at, "payload_schema"), step
    yield from _step_at(step.get("compensation"), (*at, "compensation"))
    yield from _steps_in(_member(step.get("map"), "steps"), (*at, "map", "steps"))
    branches = _member(step.get("parallel"), "branches")
    for name, steps in branches.items() if isinstance(branches, dict) else ():
        yield from _steps_in(steps, (*at, "parallel", "branches", name))


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
