# Two commands set everything up on a fresh machine: `make demo` and `make test`. Everything else is for developers.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint libraries golden clean
.DEFAULT_GOAL := help

help: ## Print the targets.
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.installed ## Install, reconstruct the sample into demo_out/, compare it with the truth.
	$(BIN)/page4d reconstruct samples/room --out demo_out --overwrite
	$(BIN)/page4d evaluate demo_out samples/room

test: $(VENV)/.tested libraries ## Install with the test tools, then run the tests.
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: $(VENV)/.developed ## Check style and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

golden: $(VENV)/.tested ## Write golden files anew; read the diff before you commit it.
	PAGE4D_REGENERATE=1 $(BIN)/python -m pytest -k golden

clean: ## Remove the environment and the demo's output.
	rm -rf $(VENV) demo_out

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "page4d needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=24'

# torch is installed first and pinned: left to itself pip may fetch gigabytes that this version does not use.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --constraint constraints.txt torch
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable '.[test]'
	touch $@

$(VENV)/.developed: $(VENV)/.tested
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $@

# Open3D reads our files back in the tests. It needs libraries that bare servers lack; without them those tests skip.
libraries:
	@sh tools/system-libraries.sh
