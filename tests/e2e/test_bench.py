"""The bench still runs, and measures what it says. Its figures are for a machine with nothing else to do."""

import re
import subprocess
import sys

import pytest

from tests.conftest import need_postgres


def test_every_part_of_the_bench_on_postgresql_runs() -> None:
    need_postgres()
    done = subprocess.run([sys.executable, "-m", "bench.run_postgres", "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    rates = dict(re.findall(r"^(\S.*?) {2,}(\d+) jobs/s \(", done.stdout, re.MULTILINE))
    assert rates.keys() == {"1 in flight", "32 in flight", "32 in flight, with a past"}
    assert all(int(rate) > 0 for rate in rates.values()), done.stdout

    rows = dict(re.findall(r"^  (\w+) +(\d+\.\d\d) ", done.stdout, re.MULTILINE))
    assert {name: rows[name] for name in ("jobs", "done", "steps", "attempts")} == {
        "jobs": "1.00",
        "done": "1.00",
        "steps": "3.00",
        "attempts": "3.00",
    }
    assert re.search(r"^[1-9][\d,]+ bytes of WAL in ", done.stdout, re.MULTILINE)
    assert len(re.findall(r"2 idle replicas, .* of a core", done.stdout)) == 2


@pytest.mark.long
def test_the_bench_of_the_temporal_engine_runs_beside_a_plain_application() -> None:
    done = subprocess.run([sys.executable, "-m", "bench.run_temporal", "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    rates = dict(re.findall(r"^(\S.*?) {2,}(\d+\.\d) jobs/s \(", done.stdout, re.MULTILINE))
    assert rates.keys() == {"Lucius, 1 in flight", "Lucius, 4 in flight", "plain, 1 in flight", "plain, 4 in flight"}
    assert all(float(rate) > 0 for rate in rates.values()), done.stdout

    ours, plain = map(float, re.findall(r"(\d+\.\d) history events per job", done.stdout))
    assert min(ours, plain) >= 3 * 3, done.stdout  # what each step needs: a signal, a task, and what became of it
    assert re.search(r"ms at p99 of [1-9]\d* callbacks", done.stdout), done.stdout
    assert len(re.findall(r"^(?:meets the bar|BELOW THE BAR): ", done.stdout, re.MULTILINE)) == 4
