# Everything a newcomer runs. Each target does what set-up it needs, into .venv and nowhere else.

PYTHON3 := $(or $(PYTHON),python3)
BIN := .venv/bin

# Tests of the sources and the documents: part of `check`, and so not run again by `test`.
RULES := tests/test_layers.py tests/test_surface.py tests/test_docs.py tests/test_language.py tests/typing
# Processes and servers are killed, frozen and started again. `make storm` runs the long form.
STORMS := tests/chaos tests/cli/test_recovery.py
# With them, what takes minutes because it starts many processes.
PROCESSES := $(STORMS) tests/cli/test_supervision.py tests/cli/test_processes.py tests/cli/test_worker_command.py \
	tests/cli/test_process_managers.py tests/cli/test_refused_connections.py tests/cli/test_reload.py tests/cli/test_clones.py \
	tests/cli/test_directory_command.py tests/worker/test_many_idle_workers.py tests/demo tests/test_examples.py \
	tests/pages/test_blocks.py tests/pages/test_quickstart.py tests/release/test_two_releases.py \
	tests/bench tests/cli/test_files_command.py tests/locks/test_absent_waiters.py tests/locks/test_rate_waiters.py
# What each further server must pass: the components, and the driver under them.
COMPONENTS := tests/core tests/jobs tests/locks tests/messages tests/completion tests/files tests/driver
# The tests that test-pythons, test-servers and test-clients run: TESTS='tests/core' runs a part, ARGS='--only 3.13' on some.
TESTS ?=
JOBS ?= 8
# What failed is tried once more, one test after another (tests/retries.py).
RETRY = -q --last-failed --last-failed-no-failures none --retry-of $@

# Let Python write .pyc files, whatever the environment says: otherwise each of the thousand processes of the tests would
# compile the package.
export PYTHONDONTWRITEBYTECODE :=

# uv uses an interpreter of this machine, and fails with a clear message if none fits.
export UV_PYTHON_DOWNLOADS := never

.PHONY: help setup check lua constants test test-processes test-pairs test-pythons test-clients test-servers test-browser \
	test-logs test-sql test-metrics docs package nightly storm soak flood demo bench bench-peers clean

help:  ## this list
	@awk -F ':.*##  *' '/^[a-z-]+:.*##/ { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: .venv/ready  ## make .venv with Penstock and its tools (again when pyproject.toml changed)

.venv/ready: pyproject.toml
	@echo "setting up .venv (a minute or so the first time)"
	@if command -v uv >/dev/null; then \
		uv venv --quiet --allow-existing $(if $(PYTHON),--python $(PYTHON)) .venv && \
		uv pip install --quiet --python $(BIN)/python --editable '.[dev]'; \
	elif $(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		$(PYTHON3) -m venv .venv && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'; \
	else \
		echo "Penstock needs Python 3.11 or newer, and '$(PYTHON3)' is not one: name one with make PYTHON=..." >&2; exit 1; \
	fi
	@touch $@

check: setup  ## format, lint, types, layers, vocabulary
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy & mypy=$$!; $(BIN)/basedpyright --pythonpath $(BIN)/python; other=$$?; wait $$mypy && exit $$other
	$(BIN)/pytest -q -n 2 $(RULES)

lua: setup  ## valid Lua, no unknown global, nothing unused (without luac and luacheck it only reports that they are missing)
	$(BIN)/python -m tests.lua.check

constants: setup  ## write what Lua and Python share, from the .lua files into constants.py
	$(BIN)/python -m tests.lua.constants

test: check  ## check, then the other tests, eight at a time, because they mostly wait (failures are retried serially)
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal --pairs one $(RULES:%=--ignore=%) $(PROCESSES:%=--ignore=%) || \
		$(BIN)/pytest $(RETRY)

test-processes: setup  ## worker processes, the programs of the documents, and the short form of the storms: kills, freezes, fail-overs
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal $(PROCESSES) || $(BIN)/pytest $(RETRY)

test-pairs: setup  ## the tests of components with those pairs of a face and a server that make test leaves out
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal --pairs rest tests || $(BIN)/pytest $(RETRY)

test-browser: setup  ## a browser uses the dashboard and two pages of the examples; installs Debian's chromium and playwright if they are missing
	@command -v chromium >/dev/null && fc-list :lang=zh 2>/dev/null | grep -q . || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fontconfig fonts-noto-cjk; }
	@$(BIN)/python -c 'import playwright, axe_playwright_python' 2>/dev/null || \
		if command -v uv >/dev/null; then uv pip install --quiet --python $(BIN)/python --editable '.[browser]'; \
		else $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[browser]'; fi
	$(BIN)/pytest -q tests/browser || $(BIN)/pytest $(RETRY)

test-logs: setup  ## the real logrotate rotates a log that is written all the time, for a simulated week; needs Debian's logrotate
	PENSTOCK_LOGROTATE=1 $(BIN)/pytest -q -n $(JOBS) tests/files/test_logrotate.py || PENSTOCK_LOGROTATE=1 $(BIN)/pytest $(RETRY)

test-pythons: setup  ## the quick suite on each further Python (on PATH or of pyenv), and in Python's development mode
	$(BIN)/python -m tests.matrix pythons $(ARGS) -n $(JOBS) --dist worksteal --pairs half \
		$(or $(TESTS),$(patsubst %,--ignore=%,$(filter-out tests/test_surface.py,$(RULES)) $(PROCESSES)))

test-clients: setup  ## the driver on the oldest and newest release of each major version of valkey-py and redis-py
	$(BIN)/python -m tests.matrix clients $(ARGS) -n $(JOBS) --dist worksteal $(or $(TESTS),tests/driver)

test-servers: setup  ## the components on each further server (Debian's Redis, older and newer ones of the index), and over TLS
	@command -v redis-server >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server; }
	PENSTOCK_REDIS_SERVER=$$(command -v redis-server) $(BIN)/pytest -q -k redis tests/ops/test_everywhere.py || \
		PENSTOCK_REDIS_SERVER=$$(command -v redis-server) $(BIN)/pytest $(RETRY)
	$(BIN)/python -m tests.matrix servers $(ARGS) -n $(JOBS) --dist worksteal --pairs half $(or $(TESTS),$(COMPONENTS))

test-sql: setup  ## the outbox and the inbox on a real PostgreSQL as well; needs Debian's postgresql
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql; }
	PENSTOCK_POSTGRES=$$(ls -d /usr/lib/postgresql/*/bin | tail -1) $(BIN)/pytest -q -n 4 $(or $(SQL),tests/sql) || \
		PENSTOCK_POSTGRES=$$(ls -d /usr/lib/postgresql/*/bin | tail -1) $(BIN)/pytest $(RETRY)

test-metrics: setup  ## every query of the Grafana board; needs Debian's prometheus
	@command -v prometheus >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus; }
	PENSTOCK_PROMETHEUS=$$(command -v prometheus) $(BIN)/pytest -q tests/integrations/test_grafana.py || \
		PENSTOCK_PROMETHEUS=$$(command -v prometheus) $(BIN)/pytest $(RETRY)

nightly: setup  ## what takes hours: all of test-pythons, test-servers and test-clients, and the long storms
	$(MAKE) test-pythons
	$(MAKE) test-servers
	$(MAKE) test-clients
	$(MAKE) storm
	$(MAKE) flood
	$(MAKE) soak

storm: setup  ## ten minutes of kills, restarts and lost replies (make test-processes has twenty seconds); SEED=n repeats a run
	PENSTOCK_STORM_SECONDS=600 PENSTOCK_STORM_SEED=$(SEED) PENSTOCK_LEDGER=20000 PENSTOCK_FLOW=10000 $(BIN)/pytest -s $(STORMS)
	PENSTOCK_ORDERS=20000 PENSTOCK_STORM_SEED=$(SEED) $(MAKE) test-sql SQL=tests/sql/test_ledger.py

flood: setup  ## a gigabyte of log through 64 MiB to three receivers that count, all killed again and again; SEED=n repeats a run
	PENSTOCK_FLOOD_MB=1024 PENSTOCK_STORM_SEED=$(SEED) $(BIN)/pytest -s tests/chaos/test_files.py

soak: setup  ## three million jobs of 100,000 tenants across two kills of the server, then an hour of mixed load; takes 70 minutes
	PENSTOCK_SOAK_JOBS=3000000 PENSTOCK_SOAK_TENANTS=100000 PENSTOCK_SOAK_SECONDS=3600 $(BIN)/pytest -s -o faulthandler_timeout=0 tests/chaos/test_soak.py

docs: setup  ## build the site into build/site: strict, every link followed; installs zensical if it is missing
	@$(BIN)/python -c 'import zensical' 2>/dev/null || \
		if command -v uv >/dev/null; then uv pip install --quiet --python $(BIN)/python --editable '.[docs]'; \
		else $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'; fi
	$(BIN)/python -m tests.pages.build

package: setup  ## build wheel and sdist into dist, check them, and run an example from each in an environment of its own
	@$(BIN)/python -c 'import build, twine' 2>/dev/null || \
		if command -v uv >/dev/null; then uv pip install --quiet --python $(BIN)/python --editable '.[release]'; \
		else $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'; fi
	$(BIN)/python -m tests.release.package

demo: setup  ## see the queue work on the embedded server; LOG=FILE reads a web access log of yours
	$(BIN)/penstock demo $(if $(LOG),'$(LOG)')

bench: setup  ## the cost of each operation, on the embedded server; options in ARGS='--pin same --full'
	$(BIN)/penstock bench $(ARGS)

bench-peers: .peers/ready  ## Penstock beside other libraries; options in ARGS='--rounds 1 --jobs 2000 penstock huey'
	$(BIN)/python benchmarks/peers.py --out .peers/result.json $(ARGS)
	@echo "python benchmarks/charts.py .peers/result.json writes the table and the charts of docs/reference/benchmarks.md"

.peers/ready: .venv/ready
	@echo "installing the other libraries into .peers"
	@$(BIN)/python -m venv .peers/venv
	@.peers/venv/bin/python -m pip install --quiet --disable-pip-version-check \
		'dramatiq[redis]' huey saq typing_extensions hiredis uvloop
	@if command -v npm >/dev/null; then npm install --silent --no-fund --no-audit --prefix .peers/node bullmq ioredis; \
	else echo "no npm on this machine: BullMQ is left out"; fi
	@touch $@

clean:  ## remove what make and the tools wrote; a .penstock folder holds data and stays
	rm -rf .venv .peers .matrix build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
