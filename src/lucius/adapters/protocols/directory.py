"""Protocols from folders of YAML and JSON files, one protocol version per file.

The shipped folder comes first. The operator's folder adds request types, and newer versions of shipped ones. A wrong
file is refused alone: the other files load, and if it was good before, its previous content stays in force until it is
corrected or removed.

    payload_schema: {...}               a JSON Schema in place
    payload_schema: schemas/ocr.yaml    or in a file below the folder, included when the protocol is read

The same goes for input_schema and output_schema.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from lucius.adapters import yaml_with_lines
from lucius.adapters.protocols.check import findings
from lucius.adapters.yaml_with_lines import Marked
from lucius.core.model.tools import Tools
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.core.protocol.validation.document import check_document
from lucius.core.protocol.validation.protocol import Finding
from lucius.ports.errors import ProtocolError

SHIPPED = Path(__file__).parents[2] / "protocols"
SUFFIXES = (".yaml", ".yml", ".json")

Signature = tuple[int, int, int, int]
Where = tuple[str | int, ...]

_NO_TARGET: Signature = (0, 0, 0, 0)


class _File(Struct):
    """State of a file: its content (`candidate`), the version in force (`good`), and why the two differ (`problem`)."""

    candidate: ProtocolDefinition | None = None
    good: ProtocolDefinition | None = None
    problem: ProtocolError | None = None
    line: int = 1


class ProtocolsDir:
    """A ProtocolSource over folders. Loads at once; `refresh` looks for changes.

    `refresh` can run in a thread, one call at a time: until it returns, the other methods answer as before it.
    """

    def __init__(self, tools: Tools, *folders: Path, shipped: bool = True) -> None:
        self._tools = tools
        self._folders = ([SHIPPED] if shipped else []) + list(folders)
        self._seen: dict[Path, Signature] = {}
        self._files: dict[Path, _File] = {}
        self._folder_problems: list[ProtocolError] = []
        self._index = _Index()
        self.refresh()

    def resolve(self, request_type: str, version: int | None = None) -> ProtocolDefinition | None:
        return self._index.resolve(request_type, version)

    def list(self) -> tuple[ProtocolDefinition, ...]:
        return self._index.list()

    def problems(self) -> tuple[ProtocolError, ...]:
        return (*self._folder_problems, *(file.problem for file in self._files.values() if file.problem))

    def place(self, protocol: ProtocolDefinition) -> tuple[str, int | None]:
        found = ((str(path), file.line) for path, file in self._files.items() if file.good is protocol)
        return next(found, ("", None))

    def refresh(self) -> bool:
        problems: list[ProtocolError] = []
        seen = {path: signature for folder in self._folders for path, signature in _scan(folder, problems)}
        self._folder_problems = problems
        if seen == self._seen:
            return False
        changed = {path for path in seen.keys() | self._seen.keys() if seen.get(path) != self._seen.get(path)}
        # Any protocol may have taken its schema from a changed file below the folder, so all are read again then.
        read_all = any(path.parent not in self._folders for path in changed)
        protocols = [path for path in seen if path.parent in self._folders]
        files = {
            path: _read_again(self._files.get(path), path, self._tools)
            if read_all or path in changed or path not in self._files
            else replace(self._files[path])
            for path in protocols
        }
        index = _put_in_force(files)
        self._files, self._index, self._seen = files, index, seen
        return True


def _scan(folder: Path, problems: list[ProtocolError]) -> Iterator[tuple[Path, Signature]]:
    try:
        yield from _signatures(folder)
        if (folder / "schemas").is_dir():
            yield from _signatures(folder / "schemas")
    except OSError as error:
        problems.append(ProtocolError(f"can't be read: {error.strerror}", file=str(folder)))


def _signatures(folder: Path) -> Iterator[tuple[Path, Signature]]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.name.startswith(".") or not entry.name.endswith(SUFFIXES):
            continue
        try:
            info = entry.stat()
        except OSError:
            if entry.is_symlink():  # its target is gone: reading the file reports that
                yield Path(entry.path), _NO_TARGET
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
    if file.candidate == file.good:  # the same object again, because caches are keyed by it
        file.candidate = file.good
    return file


def _put_in_force(files: dict[Path, _File]) -> "_Index":
    """Index the files: unchanged ones keep their names; of the others, the first to claim a name gets it."""
    index = _Index()
    for path, file in sorted(files.items(), key=lambda item: item[1].good is None or item[1].candidate != item[1].good):
        settle_file(index, path, file)
    return index


def settle_file(index: "_Index", path: Path, file: _File) -> None:
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
    """Protocols by request type and alias, and the files that contain them."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, ProtocolDefinition]] = {}
        self._newest: dict[str, ProtocolDefinition] = {}
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._paths: dict[tuple[str, int], Path] = {}

    def resolve(self, name: str, version: int | None) -> ProtocolDefinition | None:
        request_type = self._names.get(name)
        if request_type is None:
            return None
        return self._newest[request_type] if version is None else self._versions[request_type].get(version)

    def list(self) -> tuple[ProtocolDefinition, ...]:
        return tuple(
            protocol for _, versions in sorted(self._versions.items()) for _, protocol in sorted(versions.items())
        )

    def clash(self, protocol: ProtocolDefinition) -> str | None:
        """Return why this protocol can't be added to those already here, or None."""
        kind, version = protocol.request_type, protocol.version
        if other := self._paths.get((kind, version)):
            return (
                f"version {version} of {kind} is already given by {_named(other)}; use a higher version to replace it"
            )
        for name in (kind, *protocol.aliases):
            if self._names.get(name, kind) != kind:
                return f"the name {name} already stands for {self._names[name]}"
        if self._ids.get(protocol.protocol_id, kind) != kind:
            return f"the protocol_id {protocol.protocol_id} already belongs to {self._ids[protocol.protocol_id]}"
        for other_version in self._versions.get(kind, {}).values():
            if other_version.protocol_id != protocol.protocol_id:
                return f"{kind} already has the protocol_id {other_version.protocol_id}"
        return None

    def add(self, protocol: ProtocolDefinition, path: Path) -> None:
        kind = protocol.request_type
        self._versions.setdefault(kind, {})[protocol.version] = protocol
        if protocol.version >= self._newest.get(kind, protocol).version:
            self._newest[kind] = protocol
        self._names.update(dict.fromkeys((kind, *protocol.aliases), kind))
        self._ids[protocol.protocol_id] = kind
        self._paths[kind, protocol.version] = path


def _named(path: Path) -> str:
    return f"the shipped {path.name}" if path.parent == SHIPPED else path.name


class ProtocolFile(Struct, frozen=True):
    """A protocol, the document as its author wrote it, the line that names it, and warnings.

    Schemas from other files are included in the document.
    """

    protocol: ProtocolDefinition
    document: dict[str, Any]
    line: int
    warnings: tuple[ProtocolError, ...]


def read_protocol(path: Path, tools: Tools) -> ProtocolDefinition:
    """Read one file as a protocol. Raises ProtocolError with file, line and reason."""
    return read_file(path, tools).protocol


def read_file(path: Path, tools: Tools) -> ProtocolFile:
    """Read one file as a protocol with its document and warnings. Raises ProtocolError with file, line and reason."""
    source = yaml_with_lines.read(path)
    included, faults = _include_schemas(source, path.parent)
    try:
        protocol = source.convert(ProtocolDefinition)
    except ProtocolError as error:
        raise ProtocolError.joined([*faults, *error.everything]) from None
    if faults:
        raise ProtocolError.joined(faults)
    said = (*findings(protocol, tools), *check_document(source.value))
    found = [(finding, _located(finding, source, included)) for finding in said]
    if fatal := [error for finding, error in found if finding.fatal]:
        raise ProtocolError.joined(fatal)
    warnings = tuple(warning for _, warning in found)
    return ProtocolFile(protocol, source.value, source.line("request_type"), warnings)


def _located(finding: Finding, source: Marked, included: dict[Where, Marked]) -> ProtocolError:
    """Return the finding with its file and line: those of the schema file, if it is about one."""
    for where, schema in included.items():
        if finding.path[: len(where)] == where:
            return schema.error(finding.reason, finding.path[len(where) :])
    return source.error(finding.reason, finding.path)


def _include_schemas(source: Marked, folder: Path) -> tuple[dict[Where, Marked], list[ProtocolError]]:
    """Replace schemas that are named by file; return them by path, and faults of those that can't be read."""
    included, faults = {}, list[ProtocolError]()
    for where, holder in _holders(source.value):
        name = holder.get(str(where[-1]))
        if not isinstance(name, str):
            continue
        holder[str(where[-1])] = {}
        try:
            included[where] = _read_schema(source, where, name, folder)
        except ProtocolError as error:
            faults += error.everything
        else:
            holder[str(where[-1])] = included[where].value
    return included, faults


def _read_schema(source: Marked, where: Where, name: str, folder: Path) -> Marked:
    """Read a schema file in the folder `schemas` beside the protocol. Raises ProtocolError."""
    path = folder / "schemas" / Path(name).name
    if name != f"schemas/{path.name}" or path.suffix not in SUFFIXES:
        raise source.error(f"{where[-1]} must be a JSON Schema or name a file as in schemas/x.yaml: {name}", where)
    if not path.is_file():
        raise source.error(f"there is no file {name}", where)
    return yaml_with_lines.read(path)


def _holders(document: Any) -> Iterator[tuple[Where, dict[str, Any]]]:
    """Yield every object that can have a schema, with the schema's path. The document may be no valid protocol."""
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
