"""A fresh interpreter that imports `lucius`."""

import subprocess
import sys


def test_importing_lucius_loads_no_other_package() -> None:
    look = "import sys, lucius; print(*sorted(n for n in sys.modules if n.startswith('lucius')))"
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["lucius", "lucius.version"]
