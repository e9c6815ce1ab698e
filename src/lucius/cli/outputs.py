"""`lucius jobs output`: copies what the last step's service reported to the terminal, a pipe or a file.

A service may report any ref. Only refs at or below the job's `output_ref` or in its workspace are read, and no `https:`
ref on an address that is not public.
"""

import codecs
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from lucius.cli.errors import Misused, Unsuccessful
from lucius.cli.render import reported_output
from lucius.contract import JobView
from lucius.contract.refs import find_form_faults, parse_ref
from lucius.terminal import escape_json, strip_controls

CHUNK_BYTES = 256 * 1024


async def fetch_output(job: JobView, blob_root: Path, to: Path | None, *, allow_private: bool = False) -> str | None:
    """Write the job's output to a file, or to stdout.

    With `allow_private`, `https:` outputs are read from addresses that are not public, too.
    Returns its ref, or None for a result of the job itself. Raises Unsuccessful and Misused.
    """
    if job.status != "SUCCEEDED":
        raise Unsuccessful(f"job {job.jobId} is {job.status} and has no output; `lucius explain {job.jobId}` says why")
    ref = reported_output(job)
    if ref is None and job.output is None:
        raise Unsuccessful(f"job {job.jobId} SUCCEEDED, and its last step reported neither an output nor a result")
    if ref is not None:
        _check_place(ref, job, blob_root)
    chunks = _read(ref, blob_root, allow_private) if ref is not None else _encode(job.output)
    if to is not None:
        await _save(chunks, to)
    elif sys.stdout.isatty():
        await _show(chunks)
    else:
        async for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
    return ref


def _check_place(ref: str, job: JobView, blob_root: Path) -> None:
    scheme = ref.partition(":")[0].lower()
    if scheme not in ("file", "blob", "https"):
        raise Unsuccessful(f"the output is {ref}, and {scheme}: refs can't be read from here")
    try:
        is_below = any(_is_below(ref, place, blob_root) for place in (job.output_ref, job.workspace_ref))
    except ValueError:  # no URL, or no path of this system
        is_below = False
    if not is_below:
        raise Unsuccessful(
            f"the output is {ref}, which is not at or below the job's output_ref {job.output_ref}, nor in the job's "
            "workspace: not read"
        )


def _is_below(ref: str, place: str, blob_root: Path) -> bool:
    """Return True if a ref names a place or lies below it, links of files and blobs followed."""
    local, around = _local_path(ref, blob_root), _local_path(place, blob_root)
    if local is None or around is None:
        return _is_url_below(ref, place)
    return local.is_relative_to(around)


def _local_path(ref: str, blob_root: Path) -> Path | None:
    """Return the path behind a `file:` or `blob:` ref, links followed; None for other refs."""
    parts = urlsplit(ref)
    match parts.scheme:
        case "file":
            return Path(os.path.realpath(unquote(parts.path)))
        case "blob":
            return Path(os.path.realpath(blob_root / unquote(f"{parts.netloc}{parts.path}")))
        case _:
            return None


def _is_url_below(ref: str, place: str) -> bool:
    """Compare host, port and path as written; a query may select another resource, so it is that of the place."""
    found, wanted = parse_ref(ref), parse_ref(place)
    if found is None or wanted is None or find_form_faults(ref, "input"):
        return False
    parts, around = urlsplit(ref), urlsplit(place)
    is_same_host = found.scheme == wanted.scheme == "https" and found.place == wanted.place
    is_path_below = parts.path == around.path or parts.path.startswith(around.path.rstrip("/") + "/")
    return is_same_host and is_path_below and parts.query in ("", around.query)


async def _encode(result: object) -> AsyncIterator[bytes]:
    yield escape_json(msgspec.json.format(msgspec.json.encode(result), indent=2).decode()).encode() + b"\n"


async def _read(ref: str, blob_root: Path, allow_private: bool) -> AsyncIterator[bytes]:
    parts = urlsplit(ref)
    match parts.scheme:
        case "file":
            source = _chunks(ref, Path(unquote(parts.path)), "it is on the host of the service that wrote it")
        case "blob":
            path = _blob_path(ref, blob_root, unquote(f"{parts.netloc}{parts.path}"))
            source = _chunks(
                ref, path, f"searched in {blob_root}; --blob-root or LUCIUS_BLOB_ROOT names another blob folder"
            )
        case _:
            from lucius.cli.downloads import download  # noqa: PLC0415 - most outputs are read without aiohttp

            async for chunk in download(ref, allow_private=allow_private):
                yield chunk
            return
    for chunk in source:
        yield chunk


def _blob_path(ref: str, root: Path, name: str) -> Path:
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise Unsuccessful(f"{ref} leads out of the blob folder {root}")
    return path


def _chunks(ref: str, path: Path, hint: str) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise Unsuccessful(f"the output is {ref}, which can't be read from here: {error.strerror}; {hint}") from error


async def _save(chunks: AsyncIterator[bytes], to: Path) -> None:
    """Write the whole output to a file or nothing; a device or a pipe gets it as it comes."""
    real = _real_file(to)
    part = (real or to).with_name(f".{(real or to).name}.{os.getpid()}.part")
    try:
        if real is None:
            with to.open("wb") as file:
                async for chunk in chunks:
                    file.write(chunk)
            return
        with part.open("xb") as file:
            async for chunk in chunks:
                file.write(chunk)
        part.replace(real)
    except OSError as error:
        raise Misused(f"can't write {to}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def _real_file(to: Path) -> Path | None:
    """Return the file that a link leads to, so that it stays a link; None for a device, a pipe or a folder."""
    return None if to.exists() and not to.is_file() else Path(os.path.realpath(to))


async def _show(chunks: AsyncIterator[bytes]) -> None:
    """Print text, without terminal control characters. Raises Misused for other data."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    async for chunk in chunks:
        try:
            text = decoder.decode(chunk)
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise Misused("the output is not text: save it with -o FILE, or send it down a pipe")
        sys.stdout.write(strip_controls(text))
    sys.stdout.flush()
