"""Stored functions: each does its work in one round trip and one transaction.

A released function never changes. A new version gets the next number, and older code calls the old one until that is
dropped. Plans are generic and made once, since the arrays of one group look like those of the next.
"""

from lucius.adapters.ledger.sql_files import load_statements

SQLSTATE_CONFLICT, SQLSTATE_OVER_LIMIT = "LUC01", "LUC02"

CALLBACK_GAP_MS = 25_000
"""Callback APIs count as unavailable after this long without a poll by any of them: longer than their longest poll
interval, and shorter than the ACK timeout of services."""

MAX_TENANTS = 64

_SQL = load_statements(
    __package__,
    "functions",
    sqlstate_conflict=SQLSTATE_CONFLICT,
    sqlstate_over_limit=SQLSTATE_OVER_LIMIT,
    callback_gap_ms=CALLBACK_GAP_MS,
    max_tenants=MAX_TENANTS,
)
COMMIT = _SQL["commit"]
TAKE = _SQL["take"]
DUE = _SQL["due"]
TICK = _SQL["tick"]
POLL = _SQL["poll"]
