"""Detection of executions from outside, for a service whose internals can't be observed.

The contract does not reveal whether `execute` ran once or twice, so the kit uses the traces of work:

1. **Time.** A step that is made slow (LUCIUS_SERVICE_DELAY, or the author's --slow-payload) takes `took` seconds,
   which is measured at its first execution. A RESULT that answers a duplicate within half of that must have been
   remembered; one that comes after about `took` was computed again. If the service is not slow, nothing can be
   detected: the case is NOT SHOWN.
2. **Heartbeats.** Leases are short in these cases, so work sends heartbeats every few hundred milliseconds. One for an
   attempt whose RESULT has been accepted shows that work continues or was repeated. A repeated ACK does not: it is
   allowed.
3. **Artifacts.** The attempt's folder and the output are on this machine. A file that is new, or whose inode, size or
   modification time differs from that at the first RESULT, was written again.
4. **RESULT contents.** Two different RESULTs for one attempt come from two executions, or from one that reports
   inconsistently; the orchestrator must see neither.

Any one of the four is sufficient. Not detected: work that is quick, sends no heartbeats, leaves no files and reports
the same again. That looks like a remembered result.
"""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from lucius.conformance.attempt_log import PlayedAttempt
from lucius.conformance.model import NotShown

IN_FLIGHT_SECONDS = 0.25  # allowance for messages already sent when the state changed
MIN_SLOW_RATIO = 0.6

ADVICE = (
    "make steps slow for the kit: obey LUCIUS_SERVICE_DELAY (extra seconds for each step), or give a --slow-payload"
    " that takes a few seconds"
)


class FileMark(NamedTuple):
    inode: int
    size: int
    changed_ns: int


Marks = dict[Path, FileMark]


def is_uri(ref: str) -> bool:
    try:
        return bool(urlsplit(ref).scheme) and "\0" not in unquote(ref)
    except ValueError:
        return False


def path_of(ref: str) -> Path | None:
    """Return the local path of a file:// ref; None for any other."""
    return Path(unquote(urlsplit(ref).path)) if is_uri(ref) and urlsplit(ref).scheme == "file" else None


def marks(attempt: PlayedAttempt) -> Marks:
    """Return the marks of the attempt's files: its artifacts and the job's output."""
    workspace, output = path_of(attempt.directive["workspace_ref"]), path_of(attempt.directive["output_ref"])
    assert workspace is not None
    assert output is not None
    folder = workspace / attempt.key.step_id / str(attempt.key.attempt_no)
    found = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    marked = {path: _mark(path) for path in [*found, output]}
    return {path: mark for path, mark in marked.items() if mark is not None}


def _mark(path: Path) -> FileMark | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None  # a temporary file that was renamed meanwhile
    return FileMark(stat.st_ino, stat.st_size, stat.st_mtime_ns)


def took(attempt: PlayedAttempt) -> float:
    """Return the seconds from hand-over to RESULT of an attempt that was executed only once so far."""
    return attempt.results[0].at - attempt.first_handed_over


def require_slow(attempt: PlayedAttempt, slow: float) -> float:
    """Return the seconds the step took. Raises NotShown if that is too short to detect executions."""
    seconds = took(attempt)
    if seconds < slow * MIN_SLOW_RATIO:
        raise NotShown(f"the step should have taken {slow:g} s and took {seconds:.2f} s: {ADVICE}")
    return seconds


def executed_again(attempt: PlayedAttempt, asked_at: float, before: Marks, seconds: float) -> list[str]:
    """Return signs of another execution after the first RESULT, for a directive delivered again from `asked_at` on.

    `seconds` is the duration of an execution; `before` the files when the first had ended. A RESULT is attributed to
    the copy that was handed over last before it.
    """
    since = max(attempt.results[0].at, asked_at) + IN_FLIGHT_SECONDS
    signs = []
    if heartbeats := [callback for callback in attempt.heartbeats if callback.at > since]:
        signs.append(f"{_times(len(heartbeats), 'heartbeat')} came after its RESULT")
    waits = [_since_copy(attempt, callback.at) for callback in attempt.results if callback.at > since]
    if worked := [wait for wait in waits if wait > seconds / 2]:
        signs.append(f"a RESULT came {worked[0]:.1f} s after the copy, and the step takes {seconds:.1f} s")
    if rewritten := sorted(path.name for path, mark in marks(attempt).items() if before.get(path) != mark):
        signs.append(f"its files were written again: {', '.join(rewritten[:5])}")
    return signs


def _since_copy(attempt: PlayedAttempt, at: float) -> float:
    return at - max(handed_over for handed_over in attempt.handed_over if handed_over <= at)


def _times(count: int, name: str) -> str:
    return f"{count} {name}{'s' if count != 1 else ''}"
