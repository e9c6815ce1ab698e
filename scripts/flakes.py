"""Runs the test suite several times beside busy cores and lists every test that ever failed.

A test that fails once in many runs has a fault, or shows one. Each run's report stays in the folder that is printed.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]


def main() -> int:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="lucius-flakes-"))
    failed, broken = Counter[str](), 0
    with _busy_cores(options.busy):
        for run in range(1, options.runs + 1):
            began = time.monotonic()
            report = folder / f"run-{run}.xml"
            status = _run_suite(report, options.workers, options.tests)
            found = failures(report) if report.exists() else []
            failed.update(found)
            broken += status not in (0, 1)
            minutes = (time.monotonic() - began) / 60
            print(f"run {run} of {options.runs}: {len(found)} failed, {minutes:.1f} min", flush=True)
    print(f"reports: {folder}")
    for name, times in failed.most_common():
        print(f"{times} of {options.runs}  {name}")
    if broken:
        print(f"{broken} runs ended before all tests had run")
    return 1 if failed or broken else 0


def failures(report: Path) -> list[str]:
    """Return the names of the tests that failed or had an error, from a JUnit report."""
    cases = ElementTree.parse(report).iter("testcase")
    return sorted(
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1, help="processes that only use CPU")
    parser.add_argument("--workers", type=int, default=3, help="pytest processes")
    parser.add_argument("tests", nargs="*", help="arguments for pytest; without any, what `make test` runs")
    return parser.parse_args()


def _run_suite(report: Path, workers: int, tests: Sequence[str]) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--dist", "worksteal", f"--junitxml={report}"]
    log = report.with_suffix(".log")
    with log.open("w") as output:
        selected = tests or ("-m", "not long")
        return subprocess.run([*command, *selected], cwd=ROOT, stdout=output, stderr=output, check=False).returncode


@contextmanager
def _busy_cores(number: int) -> Iterator[None]:
    """Run processes of normal priority that do nothing but use CPU."""
    started = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(number)]
    for process in started:
        process.start()
    try:
        yield
    finally:
        for process in started:
            process.kill()


def _spin() -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # ends with its parent, even if that is killed
        for _ in range(1_000_000):
            pass


if __name__ == "__main__":
    sys.exit(main())
