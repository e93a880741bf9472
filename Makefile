# On a new machine, `make demo` or `make test` installs everything it needs. The other targets are for developers.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint docs libraries golden clean
.DEFAULT_GOAL := help

help: ## List the targets.
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.installed libraries ## Install page4d, and reconstruct samples/gym into demo_out/.
	-$(BIN)/page4d weights get people --quiet  # without it, depth of people is that of the network
	$(BIN)/page4d demo --out demo_out --overwrite

test: $(VENV)/.tested libraries ## Install page4d with the test dependencies, and run the tests.
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations=15 --durations-min=1

lint: $(VENV)/.developed ## Check format, lint rules and types.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.developed ## Build the documentation as a site, into site/.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

golden: $(VENV)/.tested ## Regenerate the golden files; review the diff before committing it.
	PAGE4D_REGENERATE=1 $(BIN)/python -m pytest -k golden

clean: ## Remove the virtual environment and the output of the demo.
	rm -rf $(VENV) demo_out site

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "page4d needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade 'pip>=24'

# Install the pinned torch first; otherwise pip may download another version (several GB) and discard it.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --constraint constraints.txt torch
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable '.[test]'
	-$(BIN)/page4d weights get people  # without it, tests of body keypoints are skipped
	-$(BIN)/page4d weights get texture  # without it, tests of learned features are skipped
	touch $@

$(VENV)/.developed: $(VENV)/.tested
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $@

# Open3D writes clouds and trajectories where these are installed, page4d itself elsewhere; tests that need them are skipped.
libraries:
	@sh tools/system-libraries.sh
