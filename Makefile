# Each target sets itself up on a fresh machine: a virtual environment in .venv, and what pyproject.toml names.
VENV ?= .venv
PYTHON ?= python3
READY := $(VENV)/.ready
READY_BENCH := $(VENV)/.ready-bench
READY_DOCS := $(VENV)/.ready-docs

.PHONY: run test fuzz soak test-federation docker-test docs lint bench bench-full clean

## pFedBayes on scikit-learn's scanned digits with ten clients: a result in half a minute
run: $(READY)
	$(VENV)/bin/fedbayes run dataset=digits size=medium rounds=60 personal-steps=5 zeta=auto

## all tests, a file at a time: one worker more than cores, as one often waits for processes (JOBS=0: one after the other)
JOBS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")
test: $(READY)
	PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest -q -n $(JOBS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder

## ten thousand mutated replies, ten thousand mutated hellos, some thousands of joiners and closings, two thousand mutated files: a quarter of an hour
fuzz: $(READY)
	FUZZ=1000 FUZZ_FILES=500 $(VENV)/bin/python -m pytest -q tests/federation/test_fuzz.py tests/fedbayes/test_fuzz_files.py

## a real federation over gRPC with TLS, and every fault that it must survive: a quarter of an hour
test-federation: $(READY)
	$(VENV)/bin/python -m pytest -q -m deployment tests/federation

## a federation for an hour under a seeded script of faults (SITES=4 MINUTES=6 SEED=1): docs/reliability.md
SITES ?= 12
MINUTES ?= 60
SEED ?= 0
soak: $(READY)
	$(VENV)/bin/python experiments/soak.py --sites $(SITES) --minutes $(MINUTES) --seed $(SEED)

## docker/compose.yml on a real engine, where one can be had
docker-test: $(READY)
	PYTHON=$(VENV)/bin/python docker/test

## the documentation as a site in site/, strictly: a broken link is an error
docs: $(READY_DOCS)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --quiet
	@echo "site/index.html"

## speed, memory and bytes: the quick part, about ten minutes (OPTIONS='--only step --data-dir DIR --out-dir DIR')
bench: $(READY_BENCH)
	$(VENV)/bin/python -m benchmarks $(OPTIONS)

## all of it: up to an hour and a half
bench-full: $(READY_BENCH)
	$(VENV)/bin/python -m benchmarks --full $(OPTIONS)

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy bayes_core client_app server_app strategies fedbayes benchmarks
	$(VENV)/bin/lint-imports

$(READY): pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

$(READY_BENCH): $(READY)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]' && touch $(READY_BENCH) || \
		echo "bayesian-torch cannot be installed here; the benchmark of a step goes without it."

$(READY_DOCS): pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.5,<10'
	touch $(READY_DOCS)

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
