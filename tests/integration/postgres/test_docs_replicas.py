"""The docs pages for operators of a shared ledger are true of a new ledger."""

import re
from pathlib import Path

from lucius.adapters.ledger.postgres.store import open_postgres
from lucius.bootstrap.keys import with_shared_secrets
from lucius.bootstrap.settings import Settings
from tests.support.postgres import PostgresServer

ROOT = Path(__file__).parents[3]
REPLICAS = (ROOT / "docs/how-to/replicas.md").read_text()
OPERATIONS = (ROOT / "docs/operations.md").read_text()
HOT = {"live", "outbox", "counters", "sightings", "steps", "engine", "callback_availability", "inbox"}


def test_recipe_sets_what_replicas_on_several_hosts_need() -> None:
    recipe = REPLICAS.partition("```sh\n")[2].partition("```")[0]
    needed = ("LUCIUS_LEDGER_URL", "LUCIUS_WORKSPACE_ROOT", "LUCIUS_PROTOCOLS_DIR", "LUCIUS_CONFIG", "LUCIUS_API_KEY")
    assert [name for name in needed if f"{name}=" not in recipe] == []


async def test_hot_tables_are_vacuumed_early_and_named_on_the_page(postgres: PostgresServer, postgres_url: str) -> None:
    await (await open_postgres(postgres_url)).close()
    vacuumed = postgres.query(
        """
        SELECT relname FROM pg_class, pg_options_to_table(reloptions)
        WHERE relnamespace = $1::text::regnamespace AND option_name = 'autovacuum_vacuum_scale_factor'
        """,
        postgres_url.rpartition("schema=")[2],
    )
    assert {row["relname"] for row in vacuumed} == HOT
    told = REPLICAS.partition("- **Vacuum.**")[2].partition("\n- **")[0]
    assert set(re.findall(r"`([a-z_]+)`", told)) == HOT


async def test_webhook_secret_is_found_by_the_query_on_the_page(postgres: PostgresServer, postgres_url: str) -> None:
    store = await open_postgres(postgres_url)
    try:
        used = await with_shared_secrets(Settings(ledger_url=postgres_url), store.secrets)
    finally:
        await store.close()
    (lookup,) = re.findall(r"SELECT value FROM lucius\.secrets WHERE name = '[\w-]+'", " ".join(OPERATIONS.split()))
    schema = postgres_url.rpartition("schema=")[2]
    (found,) = postgres.query(lookup.replace("lucius.", f"{schema}."))
    assert found["value"] == used.webhook_master
    assert found["value"].startswith("whsec_")
