"""The parts of the PostgreSQL ledger. `lucius.adapters.ledger_postgres` puts them together; nobody else imports them.

`schema` tables and migrations · `database` connections and errors · `batch` a group of decisions as arrays · `writer`
group commit · `cache` live jobs as this process saw them last · `outbox` what is taken and held · `wakes` what
processes tell each other · `clock` the database's time · `loads` jobs for decisions · `queries` (with `listing`),
`reviews`, `versions` everything that only reads · `texts` what can't be asked for.
"""
