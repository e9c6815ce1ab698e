"""The tables, and how an older schema becomes a newer one while the old code still runs.

Rows are indexed columns plus a JSON `body`, so that a field added to a record needs no change of a table. But code that
does not know the field erases it with its next commit: unless it may be lost, a migration says by `compatible_with`
that such code must not start any more. A test lists what is stored, so that this is decided each time.

Inside, a job is a number, `jobs.id`: it starts with the instant of acceptance in milliseconds (see `ids`), so "newest
first" and "accepted after" are ranges of a primary key, and a job's rows lie next to each other.

PostgreSQL writes a new version of a row, and an entry in each of its indexes, for every update that moves an indexed
column. So what changes is kept apart from what does not: `jobs` is written once, `live` has one small row per job in
flight whose updates move no index, and a job that ends goes to `done`. Settled outbox rows are deleted: attempts and
events tell what became of them. What is live is thus never looked for among what is finished.

Migrations only add: tables, columns with defaults, functions under a new name. Code of the version before goes on
meanwhile; what it needs is dropped one release later. One that forbids older code drops the function which that commits
with, as a process may take half a minute to find out that it is meant. They touch tables in the order in which a commit
does, jobs first, so that a migration and a commit never wait for each other in a circle.
"""

from msgspec import Struct

from lucius.adapters.postgres.functions import COMMIT_1, COMMIT_2, DUE, POLL_1, POLL_2, TAKE, TICK


class Migration(Struct, frozen=True):
    """`compatible_with` is the oldest version whose code can still run on the result.

    Statements that can't run `in_transaction`, as CREATE INDEX CONCURRENTLY, may be cut off anywhere and are then begun
    again from the first: they must not mind, so DROP INDEX CONCURRENTLY IF EXISTS comes before.
    """

    statements: tuple[str, ...]
    compatible_with: int
    in_transaction: bool = True


_KEY = 'text COLLATE "C" NOT NULL'  # compared byte by byte: the order does not depend on the server's locale

_FIRST = (
    f"""
    CREATE TABLE jobs (
        id           bigint PRIMARY KEY,
        job_id       {_KEY} UNIQUE,
        tenant_id    {_KEY},
        request_type {_KEY},
        created_at   bigint NOT NULL,
        key          {_KEY},                -- of idempotency, kept as long as the job
        hash         {_KEY},
        command      text NOT NULL,
        UNIQUE (tenant_id, key)
    )
    """,
    # `look_at` is at or before `due_at`, and follows it only when the sweeper gets there: a deadline that moves on
    # with every callback would move an index entry with it.
    f"""
    CREATE TABLE live (
        id              bigint PRIMARY KEY,
        version         integer NOT NULL,
        status          {_KEY},
        tenant_id       {_KEY},
        request_type    {_KEY},
        due_at          bigint,
        look_at         bigint,
        blocked_on      text COLLATE "C",
        blocked_service text COLLATE "C",
        holder          bigint NOT NULL DEFAULT 0,
        held_until      bigint NOT NULL DEFAULT 0,
        body            text NOT NULL       -- the job's head without its command
    ) WITH (fillfactor = 50)
    """,
    "CREATE INDEX live_look_at ON live (look_at) WHERE look_at IS NOT NULL",
    f"""
    CREATE TABLE done (
        id           bigint PRIMARY KEY,
        version      integer NOT NULL,
        status       {_KEY},
        tenant_id    {_KEY},
        request_type {_KEY},
        completed_at bigint NOT NULL,
        body         text NOT NULL
    )
    """,
    "CREATE INDEX done_by_status ON done (status, request_type, id)",
    "CREATE INDEX done_by_tenant ON done (tenant_id, status, request_type, id)",
    f"""
    CREATE TABLE steps (
        job       bigint NOT NULL,
        step_id   {_KEY},
        status    {_KEY},
        outbox_id {_KEY},
        body      text NOT NULL,
        PRIMARY KEY (job, step_id)
    ) WITH (fillfactor = 70)
    """,
    f"""
    CREATE TABLE attempts (
        job        bigint NOT NULL,
        step_id    {_KEY},
        attempt_no integer NOT NULL,
        body       text NOT NULL,
        PRIMARY KEY (job, step_id, attempt_no)
    )
    """,
    # One row for all events of a commit, under the number of the first; bodies are without the job's id.
    """
    CREATE TABLE events (
        job  bigint NOT NULL,
        seq  integer NOT NULL,
        body text NOT NULL,
        PRIMARY KEY (job, seq)
    )
    """,
    # PENDING rows only. `holder` is the process that they are kept for until `held_until`.
    f"""
    CREATE TABLE outbox (
        job             bigint NOT NULL,
        outbox_id       {_KEY},
        seq             bigint NOT NULL,    -- the order of writing
        job_id          {_KEY},
        tenant_id       {_KEY},
        step_id         {_KEY},
        attempt_no      integer NOT NULL,
        lease_id        {_KEY},
        service         {_KEY},
        topic           {_KEY},
        lane            smallint NOT NULL,
        created_at      bigint NOT NULL,
        next_attempt_at bigint,
        claimed_at      bigint,
        holder          bigint NOT NULL DEFAULT 0,
        held_until      bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (job, outbox_id)
    ) WITH (fillfactor = 70)
    """,
    # By tenant before age, so that tenants can take turns.
    """
    CREATE INDEX outbox_ready ON outbox (service, tenant_id, seq, lane)
    WHERE next_attempt_at IS NULL AND claimed_at IS NULL
    """,
    "CREATE INDEX outbox_later ON outbox (service, next_attempt_at, seq) WHERE next_attempt_at IS NOT NULL",
    "CREATE INDEX outbox_claimed ON outbox (claimed_at, seq) WHERE claimed_at IS NOT NULL",
    f"CREATE TABLE counters (name {_KEY} PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 20)",
    f"""
    CREATE TABLE quarantine (
        id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        job        bigint NOT NULL,
        step_id    {_KEY},
        attempt_no integer NOT NULL,
        lease_id   {_KEY},
        body       text NOT NULL,
        UNIQUE (job, step_id, attempt_no, lease_id)
    )
    """,
    f"""
    CREATE TABLE reviews (
        id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- the order of their opening
        review_id {_KEY} UNIQUE,
        job_id    {_KEY},
        tenant_id {_KEY},
        kind      {_KEY},
        status    {_KEY},
        signature {_KEY},
        body      text NOT NULL
    )
    """,
    "CREATE INDEX reviews_by_status ON reviews (status, id)",
    "CREATE INDEX reviews_by_tenant ON reviews (tenant_id, status, id)",
    "CREATE INDEX reviews_by_job ON reviews (job_id)",
    "CREATE INDEX reviews_open ON reviews (signature, kind, tenant_id, id) WHERE status = 'OPEN'",
    f"CREATE TABLE protocols (digest {_KEY} PRIMARY KEY, body text NOT NULL)",
    f"""
    CREATE TABLE protocol_versions (
        request_type {_KEY},
        version      integer NOT NULL,
        status       {_KEY},
        digest       {_KEY},
        body         text NOT NULL,
        PRIMARY KEY (request_type, version)
    )
    """,
    "CREATE TABLE protocol_revision (id integer PRIMARY KEY CHECK (id = 1), revision bigint NOT NULL)",
    "INSERT INTO protocol_revision (id, revision) VALUES (1, 0)",
    # What replicas sign with, if the environment does not say: a token of one must be good with the others.
    f"CREATE TABLE secrets (name {_KEY} PRIMARY KEY, value text NOT NULL)",
    # When an engine ticked last, and since when there was always one.
    """
    CREATE TABLE engine (
        id         integer PRIMARY KEY CHECK (id = 1),
        last_tick  bigint NOT NULL,
        resumed_at bigint NOT NULL
    ) WITH (fillfactor = 20)
    """,
    "INSERT INTO engine (id, last_tick, resumed_at) VALUES (1, 0, 0)",
    # The hot tables are small and churn: their dead rows go early, and never in long pauses.
    *(
        f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, "
        "autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1)"
        for table in ("live", "outbox", "counters", "steps", "engine")
    ),
    # These only grow: freeze and map them for index-only reads as they do, not when they have doubled.
    *(
        f"ALTER TABLE {table} SET (autovacuum_vacuum_insert_scale_factor = 0.05)"
        for table in ("jobs", "done", "attempts", "events")
    ),
    *(COMMIT_1, TAKE, DUE, TICK, POLL_1),
)

_INBOX = (
    f"CREATE TABLE inbox (letter_id {_KEY} PRIMARY KEY, job_id {_KEY}, at bigint NOT NULL, body text NOT NULL)",
    "CREATE INDEX inbox_at ON inbox (at, letter_id)",
    "ALTER TABLE inbox SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, "
    "autovacuum_vacuum_cost_delay = 0)",
)

# When somebody took callbacks last, and since when there was always one.
_DOOR = (
    """
    CREATE TABLE door (
        id          integer PRIMARY KEY CHECK (id = 1),
        open_at     bigint NOT NULL,
        reopened_at bigint NOT NULL
    ) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500,
            autovacuum_vacuum_cost_delay = 0)
    """,
    "INSERT INTO door (id, open_at, reopened_at) VALUES (1, 0, 0)",
    POLL_2,
)

MIGRATIONS: tuple[Migration, ...] = (
    Migration(_FIRST, compatible_with=1),
    Migration(_INBOX, compatible_with=1),
    Migration((COMMIT_2,), compatible_with=1),
    Migration(_DOOR, compatible_with=1),
)
"""Number n brings a schema from version n-1 to n. Never edit one that was released; add another."""
