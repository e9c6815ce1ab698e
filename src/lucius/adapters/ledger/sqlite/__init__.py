"""Parts of the SQLite ledger. Other packages import only `store` and `archive`.

`store` composes the ports · `schema` tables and migrations · `file` the database file (with its `lock`) ·
`memory_state` what the one writer keeps in memory, `recount` its repair · `ledger` with `batch` (one transaction,
staged) · `outbox` pending rows in fair order · `jobs` (with `searching`), `history`, `reviews`, `versions` other reads
· `inbox` (with `inbox_queue`), `sightings` · `archive` removal of finished jobs.
"""
