"""The benchmarks run and print their measurements. Figures are meaningful only on an otherwise idle machine."""

import re
import subprocess
import sys

import pytest

from tests.conftest import need_postgres


def test_benchmark_on_postgresql_prints_all_its_measurements() -> None:
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


def test_bench_of_fairness_prints_how_much_a_flood_slows_another_tenant() -> None:
    command = [sys.executable, "-m", "bench.fairness", "--runs", "1", "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    flood_rate = re.search(r"both have (\d+) jobs/s", done.stdout)
    assert flood_rate is not None, done.stdout
    assert int(flood_rate[1]) > 0
    ratio = re.search(r"another tenant's jobs (\d+\.\d) times slower", done.stdout)
    assert ratio is not None, done.stdout
    assert float(ratio[1]) > 0


def count_flood_answers(*options: str) -> float:
    """Return how many commands of a flood are answered for each job of another tenant.

    The commands are large, so that the flood is limited by the server and not by its client.
    """
    flood = ("--runs", "1", "--seconds", "1", "--connections", "16", "--kilobytes", "50")
    command = [sys.executable, "-m", "bench.fairness", *flood, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = re.search(r"the flood has (\d+\.\d) answers for each job", done.stdout)
    assert answers is not None, done.stdout
    return float(answers[1])


@pytest.mark.long
@pytest.mark.timeout(600)  # beside busy processes the jobs of an unpaced server take seconds
def test_pacing_keeps_a_flood_from_taking_the_server_from_another_tenant() -> None:
    """Compare counts, not times: without pacing, they depend on the connections of the flood alone."""
    paced, unpaced = count_flood_answers(), count_flood_answers("--share", "1")
    assert 2 * paced < unpaced, f"{paced} answers for each job with pacing, {unpaced} without"


@pytest.mark.long
def test_benchmark_of_the_temporal_engine_compares_with_a_plain_application() -> None:
    done = subprocess.run([sys.executable, "-m", "bench.run_temporal", "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    rates = dict(re.findall(r"^(\S.*?) {2,}(\d+\.\d) jobs/s \(", done.stdout, re.MULTILINE))
    assert rates.keys() == {"Lucius, 1 in flight", "Lucius, 4 in flight", "plain, 1 in flight", "plain, 4 in flight"}
    assert all(float(rate) > 0 for rate in rates.values()), done.stdout

    ours, plain = map(float, re.findall(r"(\d+\.\d) history events per job", done.stdout))
    assert min(ours, plain) >= 3 * 3, done.stdout  # what each step needs: a signal, a task, and its outcome
    assert re.search(r"ms at p99 of [1-9]\d* callbacks", done.stdout), done.stdout
    assert len(re.findall(r"^(?:meets the bar|BELOW THE BAR): ", done.stdout, re.MULTILINE)) == 4
