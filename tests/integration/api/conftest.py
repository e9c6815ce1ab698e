import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from lucius.observability.logs import configure_logging
from lucius.usecases.access.auth import hash_key
from tests.integration.api.protocols import Document, Serve, write_protocols
from tests.support.api import Api, serving, settings_for

Start = Callable[..., Awaitable[Api]]


@pytest.fixture
def log_format() -> str:
    return "json"


@pytest.fixture(autouse=True)
def log_stream(log_format: str) -> io.StringIO:
    """Return the stream with everything that a server logs at level debug."""
    stream = io.StringIO()
    configure_logging("debug", log_format, stream)
    return stream


# Modules for which it can matter that a store answers later, or that other processes change it meanwhile.
OVER_POSTGRES = {
    f"tests.integration.api.test_{name}"
    for name in (
        *(
            "audit",
            "backlog",
            "batches",
            "callbacks",
            "control",
            "idempotency",
            "jobs",
            "long_polls",
            "modes_and_limits",
            "job_webhooks",
        ),
        *("outbox", "pull", "services", "shutdown", "streams"),
    )
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "ledger_url" in metafunc.fixturenames:
        shared = ["postgres"] if metafunc.module.__name__ in OVER_POSTGRES else []
        metafunc.parametrize("ledger_url", ["memory", "sqlite", *shared], indirect=True)


@pytest.fixture
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "postgres":
            return str(request.getfixturevalue("emptied_postgres_url"))
        case "sqlite":
            return f"sqlite:///{tmp_path / 'ledger.db'}"
        case _:
            return "memory:"


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Yield a function that starts a server: `config` is the content of its config file, the rest are settings."""
    async with AsyncExitStack() as stack:

        async def start(config: dict[str, Any] | None = None, **changes: Any) -> Api:
            if config is not None:
                changes["config_path"] = write_config(tmp_path, config)
            return await stack.enter_async_context(serving(settings_for(tmp_path, **changes)))

        yield start


@pytest.fixture
async def api(start: Start, ledger_url: str) -> Api:
    return await start(ledger_url=ledger_url)


@pytest.fixture
def serve(start: Start, ledger_url: str, tmp_path: Path) -> Serve:
    """Return a function that starts a server with these protocols beside the shipped ones."""

    async def serve(*documents: Document, config: dict[str, Any] | None = None, **changes: Any) -> Api:
        folder = write_protocols(tmp_path / "protocols", *documents)
        return await start(config, ledger_url=ledger_url, protocols_dir=folder, **changes)

    return serve


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "lucius.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def key_entry(
    key: str,
    *scopes: str,
    tenants: tuple[str, ...] = (),
    service: str | None = None,
    groups: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return a key entry for the config file; its name is the key itself."""
    entry: dict[str, Any] = {"name": key, "sha256": hash_key(key), "scopes": list(scopes)}
    if tenants:
        entry["tenants"] = list(tenants)
    if service:
        entry["service"] = service
    if groups:
        entry["groups"] = list(groups)
    return entry
