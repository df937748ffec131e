# Each target sets itself up on a fresh machine: a virtual environment in .venv, and what pyproject.toml names.
VENV ?= .venv
PYTHON ?= python3
READY := $(VENV)/.ready

.PHONY: run test lint clean

## pFedBayes on scikit-learn's scanned digits with ten clients: a result in a minute or two
run: $(READY)
	$(VENV)/bin/fedbayes run dataset=digits size=medium rounds=60 personal-steps=5 zeta=0.5

## all tests
test: $(READY)
	$(VENV)/bin/python -m pytest -q

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy bayes_core client_app server_app strategies fedbayes
	$(VENV)/bin/lint-imports

$(READY): pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
