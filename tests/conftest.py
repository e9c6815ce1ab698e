"""What holds for every test: neither a developer's terminal nor exported settings nor a loaded machine matter."""

import os

from hypothesis import HealthCheck, settings

# A test runner's own width, and settings a developer has exported, would change what the product prints and does.
for name in [name for name in os.environ if name.startswith("LUCIUS_") or name in ("COLUMNS", "LINES", "NO_COLOR")]:
    del os.environ[name]

settings.register_profile("lucius", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lucius")
