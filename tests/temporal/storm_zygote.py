"""The starter of test processes, with what the Temporal engine needs imported as well."""

import importlib

from tests.e2e.zygote import main

for name in ("lucius.engine.temporal.setup", "lucius.engine.temporal.worker"):
    importlib.import_module(name)

if __name__ == "__main__":
    main()
