"""Zygote of test processes that has also imported what the Temporal engine needs."""

import importlib

from tests.e2e.zygote import main

for name in ("lucius.bootstrap.temporal", "lucius.engine.temporal.worker"):
    importlib.import_module(name)

if __name__ == "__main__":
    main()
