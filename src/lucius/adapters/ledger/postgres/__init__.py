"""Parts of the PostgreSQL ledger. Other packages import only `store` and `archive`.

`store` composes the ports · `schema` tables and migrations · `functions` stored functions · `migrate` schema upgrades ·
`database` connection pool and error translation · `ledger` with `batch` (a group of decisions as SQL arrays), `writer`
(group commit), `cache` (cached live jobs), `batched_reads` and `idempotency_reads` · `outbox` with `claims` and
`prefetched_outbox` (claiming of pending rows) · `replica` with `notify`, `notify_buffer` and `peer_registry`
(LISTEN/NOTIFY) · `liveness` of engines and APIs · `clock` the database's time · `jobs` (with `job_pages` and
`searching`), `history`, `reviews`, `versions` other reads · `inbox`, `secrets`, `sightings` · `archive` removal of
finished jobs · `text_encoding`.
"""
