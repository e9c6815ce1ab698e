"""Repairs the counters of a ledger file when it is opened."""

import msgspec
import structlog

from lucius.adapters.ledger import record_codec
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.adapters.ledger.sqlite.memory_state import MemoryState
from lucius.core.decide.decide import counted
from lucius.ports.errors import LedgerCorrupt, LedgerFull

log = structlog.get_logger()

_SQL = load_statements(__package__, "recount")
_LIVE_JOBS = _SQL["live_jobs"]


def recount(file: SqliteFile, state: MemoryState) -> None:
    """Repair the counters: they move with the jobs they count, so a difference means that the file was edited."""
    try:
        actual = _counted(file)
    except msgspec.MsgspecError as error:
        raise LedgerCorrupt(
            f"ledger {file.path} has a row that cannot be read ({error}); restore it from a backup"
        ) from error
    if actual != state.counters:
        _repair_counters(file, state, actual)


def _counted(file: SqliteFile) -> dict[str, int]:
    actual: dict[str, int] = {}
    for id_, command, head in file.fetch_rows(_LIVE_JOBS):
        job = record_codec.job(command, head)
        bodies = file.fetch_rows(_SQL["steps"], (id_,))
        steps = [step for step in (record_codec.decode_step(body) for (body,) in bodies) if step.step_id in job.active]
        for name, n in counted(job, steps).items():
            actual[name] = actual.get(name, 0) + n
    return actual


def _repair_counters(file: SqliteFile, state: MemoryState, actual: dict[str, int]) -> None:
    stored = state.counters
    wrong = sorted(name for name in actual.keys() | stored.keys() if actual.get(name) != stored.get(name))
    log.warning("ledger.counters_repaired", path=str(file.path), counters=wrong)
    state.counters = actual
    forget = (_SQL["delete_counter"], [(name,) for name in stored])
    count = (_SQL["insert_counter"], list(actual.items()))
    try:
        file.write([forget, count])
    except LedgerFull:  # a full disk must not prevent opening the ledger; the next start repairs it
        log.warning("ledger.counters_not_saved", path=str(file.path))
