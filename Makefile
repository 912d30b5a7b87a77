# Sluice: everything a checkout needs. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

# The first interpreter that is new enough; `make PYTHON=/path/to/python ...` names another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# An index with torch's CPU builds, for example PyTorch's own: without one, pip may bring the CUDA build, which works as
# well and is several GB larger.
TORCH_INDEX ?=
# Options for `make run`, as `make run ARGS="--prefill 2 --decode 2"`; for `make test`, as `make test ARGS="-k prefix"`.
ARGS ?=
# Files at a time of those tests in `make test` that only compute, and processes of mypy in `make check`.
JOBS ?= 2

FUZZ_S ?= 300
CHAOS_S ?= 300
SEED ?= $(shell date +%s)

VENV := .venv
BIN := $(VENV)/bin
PROTOS := $(shell find proto -name '*.proto' 2>/dev/null)
CODE := $(wildcard services kernels tools bench tests examples)
# Quick sets first: a mistake shows in seconds. The others start processes that wait for each other, with limits: one at a
# time, so that a slow machine keeps them.
QUICK_TESTS := $(wildcard tests/unit tests/kernels tests/chart)
TESTS := $(wildcard tests/engine tests/integration tests/faults)
say = @printf '\033[1m==> %s\033[0m\n' "$(1)"

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ------------------------------------------------------------------------------------------------------------- set-up
$(BIN)/python:
	$(call say,1/4 virtual environment in $(VENV))
	@if [ -z "$(PYTHON)" ]; then \
		echo "Sluice needs Python 3.11 or newer; none was found. Install one, or name it: make PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# torch comes first and alone: its CPU build has a version of its own (+cpu) that PyPI does not carry.
$(VENV)/.deps: requirements-cpu.txt requirements-dev.txt | $(BIN)/python
	$(call say,2/4 dependencies: the first time this takes a few minutes)
	@torch="$$(grep '^torch==' requirements-cpu.txt)+cpu"; \
	$(BIN)/python -m pip install --quiet "$$torch" 2>/dev/null || { \
		$(BIN)/python -m pip install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) "$$torch","$${torch%+cpu}"); }
	@$(BIN)/python -m pip install -r requirements-cpu.txt -r requirements-dev.txt
	@touch $@

gen/.stamp: $(PROTOS) | $(VENV)/.deps
	$(call say,3/4 stubs from $(words $(PROTOS)) protos)
	@rm -rf gen.new && mkdir gen.new
	@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=gen.new --grpc_python_out=gen.new \
		--plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --mypy_out=quiet:gen.new \
		--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc --mypy_grpc_out=quiet:gen.new $(PROTOS)
	@find gen.new -mindepth 1 -type d -exec touch {}/__init__.py \;
	@rm -rf gen && mv gen.new gen && touch $@

# After the stubs: an editable install remembers the packages that it saw.
$(VENV)/.installed: pyproject.toml $(VENV)/.deps | gen/.stamp
	$(call say,4/4 the sluice command)
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: setup gen
setup: $(VENV)/.installed gen/.stamp ## make the virtual environment, the stubs and the sluice command

gen: gen/.stamp ## make the gRPC stubs when a proto has changed

# ---------------------------------------------------------------------------------------------------------------- use
.PHONY: run test test-cluster fuzz chaos compile check clean
run: setup ## start pd_master, prefill and decode workers on this machine; options in ARGS="..."
	@exec $(BIN)/sluice up $(ARGS)

# A file's tests stay together for what its fixtures start. With ARGS it is one test after the other, as `-s` and `--pdb`
# need it.
test: setup ## run every test that needs no GPU; options in ARGS="..."
	@env -u SLUICE_URL $(BIN)/sluice fetch-demo-model
ifneq ($(ARGS),)
	@$(BIN)/python -m pytest -m "not gpu" $(ARGS)
else
	$(call say,tests that only compute)
	@$(BIN)/python -m pytest -m "not gpu" -n $(JOBS) --dist loadfile $(QUICK_TESTS)
	$(call say,tests that start processes)
	@$(BIN)/python -m pytest -m "not gpu" $(TESTS)
endif

# The variable is the tests' own; a process of Sluice would refuse it as an unknown option.
test-cluster: setup ## run the tests that need a real Kubernetes, which SLUICE_TEST_CLUSTER starts
	@env -u SLUICE_TEST_CLUSTER $(BIN)/sluice fetch-demo-model
	@$(BIN)/python -m pytest tests/cluster $(ARGS)

# Longer than the fixed bodies that `make test` sends.
fuzz: setup ## explore the API by its OpenAPI document for FUZZ_S seconds
	@FUZZ_S=$(FUZZ_S) $(BIN)/python -m pytest tests/integration/api/test_fuzz.py $(ARGS)

# What a seed does depends on the machine's pace too: the requests are the same again, and the order of each role's faults.
chaos: setup ## all features at once under random faults for CHAOS_S seconds; SEED=N repeats a run's draws
	@CHAOS_S=$(CHAOS_S) SEED=$(SEED) $(BIN)/python -m pytest -s tests/faults/test_chaos.py $(ARGS)

# `make test` compiles those of a few.
compile: setup ## compile the kernels of many models, dtypes and ranks for a card that need not be there
	@ALL_SHAPES=1 $(BIN)/python -m pytest tests/kernels/test_compiles.py $(ARGS)

check: setup ## lint, types, import rules, protos, sizes, chart
	$(call say,ruff)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	$(call say,mypy)
	@$(BIN)/mypy --num-workers $(JOBS) $(CODE)
	$(call say,import rules)
	@$(BIN)/lint-imports --no-cache
	$(call say,protos)
	@$(BIN)/buf lint
	$(call say,sizes)
	@$(BIN)/python -m tools.check_sizes
	@if [ -f tools/check_chart.py ]; then $(BIN)/python -m tools.check_chart; fi

clean: ## remove what was built (the model cache stays)
	rm -rf $(VENV) gen gen.new build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
