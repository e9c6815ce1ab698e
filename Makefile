# Everything a fresh machine needs beyond Python 3.11, pip and make is fetched into .uv and .venv. Only the tests'
# PostgreSQL comes from the system's packages.
PYTHON ?= python3
UV_VERSION := 0.13.7
UV := .uv/bin/uv
BIN := .venv/bin
MINUTES ?= 10
RUNS ?= 5

.PHONY: setup servers demo dev test test-fast test-long flakes check format bench soak schemas docs clean

setup: .venv/.done servers

servers:  ## what the tests start for themselves, installed where it is missing and we may
	@scripts/test_servers.sh

.venv/.done: pyproject.toml uv.lock | $(UV)
	$(UV) sync --frozen --all-extras --python $(PYTHON)
	@touch $@

$(UV):  # --target needs neither the venv module nor the right to install into the system
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --target .uv uv==$(UV_VERSION)

demo: .venv/.done  ## run the main job, with failures, and print a verdict; ENGINE=temporal with Temporal
	$(BIN)/lucius demo $(if $(ENGINE),--engine $(ENGINE))

dev: .venv/.done  ## the whole stack until Ctrl-C; PORT=… for another port, ENGINE=temporal with Temporal and its web UI
	$(BIN)/lucius dev $(if $(PORT),--port $(PORT)) $(if $(ENGINE),--engine $(ENGINE))

test: setup  ## every test but the long ones; many of them wait, so there is one process more than the two cores they are meant for
	$(BIN)/pytest -n 3 --dist worksteal -m "not long"

test-fast: .venv/.done  ## the unit tests alone, for every save: no servers, no processes, under 90 s
	$(BIN)/pytest -n 2 --dist worksteal tests/unit

test-long: setup  ## what runs on a real Temporal server, the conformance kit, fuzzing, the benches; CI runs it, too
	$(BIN)/pytest -n 2 --dist worksteal -m long

flakes: setup  ## `make test` RUNS times beside busy cores; lists every test that ever failed
	$(BIN)/python -m scripts.flakes --runs $(RUNS)

check: .venv/.done  ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.done
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## jobs per second and latency, real processes; LEDGER=postgres (beside DBOS), ENGINE=temporal (beside a plain one)
ifeq ($(ENGINE),temporal)
	$(BIN)/python -m bench.run_temporal
else ifeq ($(LEDGER),postgres)
	$(UV) sync --frozen --all-extras --group bench --python $(PYTHON)
	$(BIN)/python -m bench.run_postgres
else
	$(BIN)/python -m bench.run
	$(BIN)/python -m bench.worker
	$(BIN)/python -m bench.fairness
endif

soak: setup  ## long simulation and kill runs
	$(BIN)/python -m tests.simulation.soak --minutes $(MINUTES)
	$(BIN)/python -m tests.e2e.kill_soak --minutes $(MINUTES)
	$(BIN)/python -m tests.e2e.replica_soak --minutes $(MINUTES)
	$(BIN)/python -m tests.e2e.kit_soak
	$(BIN)/python -m tests.temporal.twin_soak --minutes $(MINUTES)
	$(BIN)/python -m tests.temporal.storm_soak --minutes $(MINUTES)

schemas: .venv/.done  ## write the published schemas; refuses a change that is not additive
	$(BIN)/python -m scripts.schemas

docs: .venv/.done  ## write the pages and the table of the SDK that are generated from code
	$(BIN)/python -m scripts.state_diagram
	$(BIN)/python -m scripts.error_codes
	$(BIN)/python -m scripts.retry_matrix
	$(BIN)/python -m scripts.settings_reference
	$(BIN)/python -m scripts.cli_reference
	$(BIN)/python -m scripts.sdk_failure_classes

clean:
	rm -rf .venv .uv .lucius
