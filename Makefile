# `make demo`, `make check`, `make test`, `make torture`. Each creates the virtual environment first.

# The newest of Python 3.11 to 3.14; `make PYTHON=/path/to/python3.12 test` uses another.
PYTHON ?= $(firstword $(foreach candidate,python3.14 python3.13 python3.12 python3.11 python3,\
	$(shell $(candidate) -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 14) and print("$(candidate)")' 2>/dev/null)))
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE := mage tests benchmarks scripts examples
PYTEST := $(BIN)/pytest
# As a plain path, which editors and type checkers read.
EDITABLE := --config-settings editable_mode=compat -e
unexport PYTHONDONTWRITEBYTECODE  # tests start many processes: each file is compiled once

.PHONY: demo check test torture lint bench docs venv clean
.DEFAULT_GOAL := test

venv: $(STAMP)

# Torch first: it is the largest package, so a lack of space or network shows at once.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "MAGE needs Python 3.11, 3.12, 3.13 or 3.14, and neither python3 nor python3.11 to python3.14 is one. Name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt $(EDITABLE) '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/mage train demo

lint: $(STAMP)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy mage benchmarks scripts

# Lint runs beside the tests; its output comes after theirs, and both must succeed.
LINT := $(VENV)/lint.txt
BESIDE_LINT = @$(MAKE) --no-print-directory lint >$(LINT) 2>&1 & $(1); tests=$$?; \
	wait $$!; lint=$$?; cat $(LINT); exit $$((tests || lint))

# Lint and fast tests: for every change. Some tests wait for silent servers, so two cores have three
# test processes.
check: $(STAMP)
	$(call BESIDE_LINT,$(PYTEST) --forks 3 -m "not slow and not e2e")

# Everything, each test once.
test: $(STAMP)
	$(call BESIDE_LINT,$(PYTEST) --forks 3)

# Kills, damaged files, fuzzed input, full disks: about 20 minutes. `make test` has a short form.
torture: $(STAMP)
	$(BIN)/python -m tests.torture

bench: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt $(EDITABLE) '.[dev,peers]'
	$(BIN)/python -m benchmarks

docs: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt $(EDITABLE) '.[docs]'
	$(BIN)/python scripts/write_options.py
	$(BIN)/mkdocs build --strict --site-dir build/site

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find mage tests -name __pycache__ -type d -prune -exec rm -rf {} +
