# surefoot: `make demo` and `make test` each do everything from a clean clone.
# Needs Python 3.11 or newer with venv; another one: make PYTHON=python3.12 test

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench soak test-gpu clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-9s %s\n", $$1, $$2}' Makefile

setup: $(READY)  ## make .venv and install everything, once

# The stamp is last: an installation that broke off is begun again. The constraints also hold for the build's own
# environment: an older pip takes them from the first variable, a newer one from the second.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,dev]'
	touch $@

demo: $(READY)  ## train a small GPT, kill it again and again, compare bit for bit with the undisturbed run
	$(BIN)/surefoot demo $(ARGS)

test: $(READY)  ## every test but the soak and the GPU ones; one of them: make test ARGS=tests/unit/core
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)  ## ruff, mypy, import-linter, the house rules, documents against code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/test_tidy.py tests/docs

format: $(READY)  ## lay the code out and sort its imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --select I --fix .

bench: $(READY)  ## every benchmarks/*.py, its figures into out/bench/NAME.json; goes on after one that fails
	@mkdir -p out/bench; failed=; \
	for file in $(filter-out benchmarks/report.py,$(wildcard benchmarks/*.py)); do \
	  name=$$(basename $$file .py); printf '\n== %s\n' $$name; \
	  $(BIN)/python $$file --json out/bench/$$name.json || failed="$$failed $$name"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

soak: $(READY)  ## the full campaign of kills, its summary into out/soak.json, then the long tests: an hour or so
	$(BIN)/python -m surefoot.chaos.campaign --seeds 0:400 --points '*' --jobs 2 --least 5 --json out/soak.json $(ARGS)
	$(BIN)/python -m pytest -m soak -s -o faulthandler_timeout=0

test-gpu: $(READY)  ## the tests that need a CUDA device
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
	then $(BIN)/python -m pytest -m gpu $(ARGS); \
	else echo 'test-gpu: skipped, torch finds no CUDA device on this machine'; fi

clean:  ## remove what make made: the environment, caches, build and benchmark output (runs/ stays)
	rm -rf .venv build dist out .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
