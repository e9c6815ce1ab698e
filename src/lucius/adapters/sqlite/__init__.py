"""The parts of the SQLite ledger. `lucius.adapters.ledger_sqlite` puts them together; nobody else imports them.

`schema` tables and migrations · `store` the file and its lock · `live` what the one
writer keeps in memory · `batch` one transaction, staged · `outbox` what waits to be handed over, in fair order ·
`queries` everything else that only reads · `versions` the lives of protocols.
"""
