"""Starts services on the `local:` bus. The one module here that names a bus adapter."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from lucius.adapters.bus_local import LocalConsumer
from lucius.services import SERVICES
from lucius.worker import HostOptions, Places, PlatformService, host
from lucius.worker.runtime import RuntimeOptions


async def run_services(
    services: Iterable[str | PlatformService],
    base_url: str,
    api_key: str,
    *,
    concurrency: int = 16,
    data_dir: Path | None = None,
    lanes: Iterable[int] | None = None,
    grace: float = 20.0,
    health_port: int | None = None,
    handle_signals: bool = True,
    stop: asyncio.Event | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Host services, shipped ones by name or one's own, in this process until SIGTERM, SIGINT or `stop`."""
    environ = os.environ if environ is None else environ
    demo = environ.get("LUCIUS_DEMO_INPUTS") == "1"
    chosen = [SERVICES[service](demo_inputs=demo) if isinstance(service, str) else service for service in services]
    only = None if lanes is None else list(lanes)
    options = HostOptions(
        orchestrator_url=base_url,
        runtime=RuntimeOptions(concurrency=concurrency, grace_seconds=grace, places=places_from(environ, data_dir)),
        data_dir=data_dir,
        health_port=health_port,
        handle_signals=handle_signals,
    )
    await host(chosen, lambda name: LocalConsumer(base_url, name, api_key, only), options, stop)


def run_from_env(service: PlatformService) -> None:
    """`main` of a service script: LUCIUS_ORCHESTRATOR_URL and LUCIUS_API_KEY say where to, and who we are."""
    base_url = os.environ.get("LUCIUS_ORCHESTRATOR_URL", "http://127.0.0.1:8080")
    data_dir = os.environ.get("LUCIUS_DATA_DIR")
    asyncio.run(
        run_services([service], base_url, os.environ["LUCIUS_API_KEY"], data_dir=Path(data_dir) if data_dir else None)
    )


def places_from(environ: Mapping[str, str], data_dir: Path | None) -> Places:
    """LUCIUS_BLOB_ROOT, else `<data_dir>/blobs`; LUCIUS_FILE_ROOTS, else wherever this process may go."""
    blob_root = environ.get("LUCIUS_BLOB_ROOT") or (data_dir / "blobs" if data_dir else None)
    file_roots = environ.get("LUCIUS_FILE_ROOTS")
    return Places(
        blob_root=Path(blob_root) if blob_root else None,
        file_roots=tuple(Path(root) for root in file_roots.split(os.pathsep) if root) if file_roots else None,
    )
