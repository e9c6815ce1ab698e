"""How an execution is noticed from outside, in a service whose inside we can't see.

Whether `execute` ran once or twice can't be asked over the contract, so the kit goes by what work leaves behind:

1. **Time.** A step that is made slow (LUCIUS_SERVICE_DELAY, or the author's --slow-payload) takes `took` seconds,
   which is measured at its first execution. What comes in answer to a duplicate within half of that can only be a
   memory; a RESULT that comes after about `took` has been worked for. A service that is not slow shows nothing:
   the case is NOT SHOWN.
2. **Heartbeats.** Leases are short in these cases, so work sends heartbeats every few hundred milliseconds. One for an
   attempt whose RESULT has been accepted tells of work that goes on, or goes on again. An ACK does not: saying twice
   that one has a directive is fine.
3. **Artifacts.** The attempt's folder and the output lie on this machine. A file that is new, or whose inode, size or
   time of change is another than at the first RESULT, was written again.
4. **What RESULTs say.** Two that differ for one attempt come from two executions, or from one that can't make up its
   mind; either way the orchestrator must not see it.

Any one of the four convicts. The blind spot: work that is quick, sends no heartbeats, leaves no files and says the
same again. From outside it is no different from remembering.
"""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from lucius.conformance.book import Attempt
from lucius.conformance.model import NotShown

IN_FLIGHT = 0.25  # what was on its way when something else was decided
SLOW_ENOUGH = 0.6

ADVICE = (
    "make steps slow for the kit: heed LUCIUS_SERVICE_DELAY (seconds that every step takes longer), or give a"
    " --slow-payload that takes a few seconds"
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
    """Where a file:// ref lies on this machine; None for any other."""
    return Path(unquote(urlsplit(ref).path)) if is_uri(ref) and urlsplit(ref).scheme == "file" else None


def marks(attempt: Attempt) -> Marks:
    """What the attempt has left on disk: its artifacts, and the job's output."""
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
        return None  # a temporary file that has got its real name since we looked
    return FileMark(stat.st_ino, stat.st_size, stat.st_mtime_ns)


def took(attempt: Attempt) -> float:
    """From hand-over to RESULT, of an attempt that was executed just once so far."""
    return attempt.results[0].at - attempt.first_handed_over


def require_slow(attempt: Attempt, slow: float) -> float:
    """How long the step took. Raises NotShown if that is too short to tell anything."""
    seconds = took(attempt)
    if seconds < slow * SLOW_ENOUGH:
        raise NotShown(f"the step should have taken {slow:g} s and took {seconds:.2f} s: {ADVICE}")
    return seconds


def executed_again(attempt: Attempt, asked_at: float, before: Marks, seconds: float) -> list[str]:
    """Signs of another execution after the first RESULT, by a directive that came again at `asked_at` and later.

    `seconds` is how long an execution takes; `before` is what was on disk when the first had ended. A RESULT answers
    the copy that was handed over last before it.
    """
    since = max(attempt.results[0].at, asked_at) + IN_FLIGHT
    signs = []
    if beats := [said for said in attempt.beats if said.at > since]:
        signs.append(f"{_times(len(beats), 'heartbeat')} of it came after its RESULT")
    waits = [_since_copy(attempt, said.at) for said in attempt.results if said.at > since]
    if worked := [wait for wait in waits if wait > seconds / 2]:
        signs.append(f"a RESULT came {worked[0]:.1f} s after the copy, and the step takes {seconds:.1f} s")
    if rewritten := sorted(path.name for path, mark in marks(attempt).items() if before.get(path) != mark):
        signs.append(f"its files were written again: {', '.join(rewritten[:5])}")
    return signs


def _since_copy(attempt: Attempt, at: float) -> float:
    return at - max(handed_over for handed_over in attempt.handed_over if handed_over <= at)


def _times(count: int, name: str) -> str:
    return f"{count} {name}{'s' if count != 1 else ''}"
