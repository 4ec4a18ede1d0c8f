# Everything runs in .venv; nothing needs to be installed by hand beyond python3 and Go.
PYTHON ?= python3
NODES ?= 5000
ARGS ?=
BIN := .venv/bin

.PHONY: help setup spawn test lint types unit sim e2e parity conformance bench format clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

.venv/.stamp: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fleet needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[dev,locust]'
	touch $@

setup: .venv/.stamp  ## create .venv with everything in it

spawn: setup  ## bring up NODES virtual kubelets on a local control plane
	$(BIN)/fleet spawn --nodes $(NODES) $(ARGS)

test: lint types unit sim e2e  ## every test
lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
types: setup
	$(BIN)/mypy
unit: setup
	$(BIN)/pytest tests/unit tests/wire tests/conformance tests/parity/test_comparison.py
sim: setup
	$(BIN)/pytest tests/sim
e2e: setup
	$(BIN)/fleet controlplane build
	$(BIN)/pytest --numprocesses 2 --dist loadfile tests/e2e

parity: setup  ## the requests of a node against those of Kubernetes' own kubelet code
	$(BIN)/fleet controlplane build
	$(BIN)/pytest tests/parity

conformance: setup  ## the Kubernetes project's own tests of its workload controllers
	$(BIN)/fleet controlplane build
	$(BIN)/python tests/conformance/conformance.py $(ARGS)

bench: setup  ## measure 5,000 nodes in both fidelities
	$(BIN)/python -m tests.bench

format: setup  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what make created here
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis runs
