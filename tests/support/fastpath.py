"""LUCIUS_TEMPORAL_FASTPATH in tests: exported for a whole run, or set by a fixture of tests/temporal for one test."""

import os

FASTPATH = "LUCIUS_TEMPORAL_FASTPATH"


def fastpath_env() -> dict[str, str]:
    """Return the setting as part of an environment for `load_settings` or for a process; empty if it is not set."""
    return {FASTPATH: os.environ[FASTPATH]} if FASTPATH in os.environ else {}
