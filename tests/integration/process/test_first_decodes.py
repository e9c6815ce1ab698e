"""msgspec crashes if several threads use a type for the first time at once; Lucius builds its decoders beforehand."""

import subprocess
import sys

import pytest

RACE = """
import importlib, sys, threading

sys.setswitchinterval(1e-6)
module = importlib.import_module("{module}")
for _ in range(30):
    module = importlib.reload(module)  # makes types that were never used
    barrier = threading.Barrier(12)

    def use():
        barrier.wait()
        {use}

    threads = [threading.Thread(target=use) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
PAGES = b'{"pages":[{"number":1,"start":0,"end":1,"method":"text","confidence":null}]}'
VECTORS = (
    b'{"model":"m","dimensions":1,"chunk_size":1,"chunk_overlap":0,"chunk_by":"size","pages":[],"unread_pages":0,'
    b'"chunks":[{"index":0,"start":0,"end":1,"text":"a","vector":[1.0],"page":null}]}'
)


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("lucius.reference_services.pages", f"module.parse_pages_file({PAGES!r}, 'a')"),
        ("lucius.reference_services.vectors", f"module.read_vectors({VECTORS!r})"),
    ],
)
def test_concurrent_first_decodes_do_not_crash(module: str, use: str) -> None:
    run = subprocess.run([sys.executable, "-c", RACE.format(module=module, use=use)], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (0, b"")
