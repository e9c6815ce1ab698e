"""Local files that belong to Lucius; no client's `file:` ref may name them."""

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lucius.adapters.protocols.directory import SHIPPED
from lucius.bootstrap.settings import Settings
from lucius.contract.refs import list_key_files
from lucius.usecases.submit.ref_policy import RefDefaults


def ref_defaults(settings: Settings) -> RefDefaults:
    """Return the rules for `file:` refs that follow from the settings, and from where symbolic links lead now."""
    named = (
        settings.config_path,
        settings.protocols_dir,
        settings.temporal_ca_file,
        settings.temporal_cert_file,
        settings.temporal_key_file,
        *_ledger_files(settings),
        *_key_files(settings),
    )
    own = list(dict.fromkeys(name for path in named if path is not None for name in _names_of(path)))
    return RefDefaults(
        file_roots=settings.dev_file_roots,
        protected=_texts([settings.data_dir, *own, SHIPPED, *_all_workspaces(settings)]),
        named_files=_texts(path for path in own if not _is_default_ledger(path, settings.data_dir)),
        reachable=(str(settings.data_dir / "blobs"),),
    )


def _names_of(path: Path) -> tuple[Path, ...]:
    """Return the absolute name of a file, and the name of the file that its symbolic links lead to."""
    return tuple(dict.fromkeys((Path(os.path.abspath(path)), Path(os.path.realpath(path)))))


def _texts(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(map(str, paths))


def _is_default_ledger(path: Path, data_dir: Path) -> bool:
    return path.parent == data_dir and path.name.startswith("ledger.db")


def _all_workspaces(settings: Settings) -> list[Path]:
    root = urlsplit(settings.workspace_root)
    return [Path(unquote(root.path)) / "lucius"] if root.scheme == "file" else []


def _key_files(settings: Settings) -> list[Path]:
    urls = (settings.ledger_url, settings.bus_url, settings.gate_url)
    return [Path(name) for url in urls for name in list_key_files(url)]


def _ledger_files(settings: Settings) -> tuple[Path, ...]:
    if settings.ledger_scheme != "sqlite":
        return ()
    names = _names_of(Path(settings.ledger_url.removeprefix("sqlite:").removeprefix("///")))
    # SQLite puts its other files beside the target of a symbolic link.
    endings = ("", "-wal", "-shm", "-journal", ".lock")
    return tuple(name.with_name(name.name + ending) for name in names for ending in endings)
