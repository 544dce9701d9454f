# Every target sets up what it needs: `make run` on a fresh Debian or Ubuntu with Python 3.11 and a C++
# compiler is all a newcomer types. Caches live outside the repository.
CACHE   ?= $(if $(SLIPWAY_CACHE),$(SLIPWAY_CACHE),$(HOME)/.cache/slipway)
PYTHON  ?= python3
HOST    ?= 127.0.0.1
PORT    ?= 8000
SERVE   ?=

# One environment for each state of the dependencies, shared by all clones; the project itself runs from the
# clone, so no two of them meet.
KEY     := $(shell { sed -n '/^\[project\]/,/^\[project.scripts\]/p' pyproject.toml; $(PYTHON) --version; } | cksum | cut -d' ' -f1)
VENV    := $(CACHE)/venv-$(KEY)
BIN     := $(VENV)/bin
export PYTHONPATH := $(CURDIR)/runtime:$(CURDIR)/kernels:$(CURDIR)/operator
export SLIPWAY_COMMAND := bin/slipway
# Bytecode caches make a start a second faster.
unexport PYTHONDONTWRITEBYTECODE

# The oldest Triton that the kernels support: they are compiled under it and under torch's own.
OLDEST_TRITON := 3.6.0
OLDEST := $(CACHE)/triton-$(OLDEST_TRITON)

.PHONY: help run python test check lint fast aot e2e soak bench generate setup setup-dev kernels clean
.PHONY: cluster cluster-shell cluster-down

help:
	@echo "make run       serve the demo model at http://$(HOST):$(PORT)"
	@echo "make test      every check"
	@echo "make check     lint, types and the fast tests"
	@echo "make aot       compile every CUDA kernel for every architecture, without a GPU"
	@echo "make e2e       the operator, charts and images on real clusters"
	@echo "make cluster   such a cluster to try things on; cluster-shell enters it, cluster-down ends it"
	@echo "make soak      ten minutes of load, fuzzing in full, 500 services at rest"
	@echo "make bench     the CPU benchmarks (bench/cpu.md)"
	@echo "make generate  write what is generated from the schema"

run: setup
	@exec $(BIN)/python -m slipway demo --host $(HOST) --port $(PORT) $(SERVE)

# The interpreter that bin/slipway runs.
python: setup
	@echo $(BIN)/python

test: setup-dev lint
	$(BIN)/python -m slipway.generate --check
	$(TESTS) -m "not soak"
	$(AOT) --quiet
	$(AOT_OLDEST) --quiet
	$(E2E)
	@echo "make test: every check passed"

check: setup-dev lint fast

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Files with slow tests come first: tests/conftest.py.
TESTS := $(BIN)/python -m pytest tests -n 2 --dist loadscope --no-loadscope-reorder
fast:
	$(TESTS) -m "not slow and not soak"

# What has not changed since it was last compiled is not compiled again.
AOT := $(BIN)/python -m slipway_kernels.cuda.ahead
AOT_OLDEST := PYTHONPATH=$(OLDEST):$(PYTHONPATH) $(AOT)
aot: setup-dev
	$(AOT)
	$(AOT_OLDEST)

# On clusters of its own, built from pinned sources: the first time takes a quarter of an hour.
# Three at a time on two cores: the longest waits for pods most of its time.
E2E := $(BIN)/python -m pytest e2e -n 3 --no-loadscope-reorder -m "not soak" -rs
e2e: setup-dev
	$(E2E)

cluster: setup-dev
	@$(BIN)/python -m e2e.ground up --released

cluster-shell: setup-dev
	@$(BIN)/python -m e2e.ground shell

cluster-down: setup-dev
	@$(BIN)/python -m e2e.ground down

soak: setup-dev
	$(BIN)/python -m pytest tests/soak e2e -m soak -s -p no:cacheprovider

bench: setup-dev
	$(BIN)/python bench/cpu.py

generate: setup-dev
	$(BIN)/python -m slipway.generate

setup: $(VENV)/.cpu kernels

setup-dev: $(VENV)/.dev $(OLDEST)/triton kernels

kernels: $(VENV)/.cpu
	@$(BIN)/python -m slipway_kernels.build >/dev/null

$(VENV)/.cpu:
	@tools/setup.sh "$(PYTHON)" "$(VENV)" cpu >&2
	@touch $@

$(VENV)/.dev: $(VENV)/.cpu
	@tools/setup.sh "$(PYTHON)" "$(VENV)" cpu,operator,bench,dev >&2
	@touch $@

$(OLDEST)/triton: | $(VENV)/.dev
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --target $(OLDEST) triton==$(OLDEST_TRITON)

clean:
	rm -rf build dist *.egg-info runtime/*.egg-info kernels/slipway_kernels/*.so
