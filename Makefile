# Every target sets up what it needs: `make run` on a fresh Debian or Ubuntu with Python 3.11 and a C++
# compiler is all a newcomer types. Caches live outside the repository.
CACHE   ?= $(if $(SLIPWAY_CACHE),$(SLIPWAY_CACHE),$(HOME)/.cache/slipway)
PYTHON  ?= python3
HOST    ?= 127.0.0.1
PORT    ?= 8000
SERVE   ?=

# Two environments for each state of the dependencies, shared by all clones: what `make run` needs, and what
# development needs, torch among it. The project itself runs from the clone, so no two of them meet.
KEY     := $(shell { sed -n '/^\[project\]/,/^\[project.scripts\]/p' pyproject.toml; $(PYTHON) --version; } | cksum | cut -d' ' -f1)
VENV    := $(CACHE)/venv-$(KEY)
BIN     := $(VENV)/bin
CPU_VENV := $(CACHE)/venv-cpu-$(KEY)
export PYTHONPATH := $(CURDIR)/runtime:$(CURDIR)/kernels:$(CURDIR)/operator
export SLIPWAY_COMMAND := bin/slipway
# Bytecode caches make a start a second faster.
unexport PYTHONDONTWRITEBYTECODE

# Clients of the API, and an S3 server, for the tests: their packages disagree with development's.
CLIENTS := $(CACHE)/venv-clients-$(KEY)
export CLIENTS_PYTHON := $(CLIENTS)/bin/python

# The oldest Triton that the kernels support: they are compiled under it and under torch's own.
OLDEST_TRITON := 3.6.0
OLDEST := $(CACHE)/triton-$(OLDEST_TRITON)

# The official test suite of JSON Schema, which the sources of this package carry.
SUITE := $(CACHE)/jsonschema-4.26.0
SUITE_SHA256 := 0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326
export JSON_SCHEMA_SUITE := $(SUITE)/json/tests

.PHONY: help run python test check lint fast here exhaustive aot programs product e2e goals soak bench
.PHONY: generate setup setup-dev kernels browser clean cluster cluster-shell cluster-down

help:
	@echo "make run         serve the demo model at http://$(HOST):$(PORT)"
	@echo "make test        lint, types, the tests on this machine, the product on a real cluster"
	@echo "make check       lint, types and the fast tests"
	@echo "make exhaustive  the cells of matrices that make test leaves out"
	@echo "make e2e         all tests on real clusters: operator, charts, images, monitoring"
	@echo "make goals       what the operator set out to do, each row with its tests"
	@echo "make aot         compile every CUDA kernel for every architecture under both Tritons, without a GPU"
	@echo "make cluster     such a cluster to try things on; cluster-shell enters it, cluster-down ends it"
	@echo "make soak        ten minutes of load, fuzzing in full, 500 services at rest"
	@echo "make bench       the CPU benchmarks (bench/cpu.md)"
	@echo "make generate    write what is generated from the schema"

run: setup
	@exec $(CPU_VENV)/bin/python -m slipway demo --host $(HOST) --port $(PORT) $(SERVE)

# The interpreter that bin/slipway runs.
python: setup
	@echo $(CPU_VENV)/bin/python

# What the cluster needs is built while tests run, which leave a core idle now and then.
test: setup-dev
	@$(MAKE) --no-print-directory -j2 programs PROGRAMS=product here
	@$(MAKE) --no-print-directory product
	@echo "make test: passed. Left to other commands: the rest of the tests on clusters (make e2e), each kernel"
	@echo "for each architecture under both Tritons (make aot), matrices in full (make exhaustive), minutes of"
	@echo "load (make soak)."

# All that needs no cluster, one after the other: each takes both cores.
here: lint
	$(BIN)/python -m slipway.generate --check
	$(TESTS) -m "not soak and not exhaustive"
	$(AOT) --quiet --pairwise 0
	$(AOT_OLDEST) --quiet --pairwise 1

check: setup-dev lint fast

lint:
	$(BIN)/ruff check --no-cache .  # a cache forgets that a module moved, by which imports are sorted
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Files with slow tests come first: tests/conftest.py.
TESTS := $(BIN)/python -m pytest tests -n 2 --dist loadscope --no-loadscope-reorder
fast:
	$(TESTS) -m "not slow and not soak"

exhaustive: setup-dev
	$(TESTS) -m exhaustive

# What has not changed since it was last compiled is not compiled again.
AOT := $(BIN)/python -m slipway_kernels.cuda.ahead
AOT_OLDEST := PYTHONPATH=$(OLDEST):$(PYTHONPATH) $(AOT)
aot: setup-dev
	$(AOT)
	$(AOT_OLDEST)

# Programs compiled from pinned sources, and this tree's images: all, or with PROGRAMS=product what `product` uses.
PROGRAMS ?= all
programs: setup-dev
	@$(BIN)/python -m e2e.ground ahead $(PROGRAMS)

# Three at a time on two cores: the longest waits for pods most of its time. WITHOUT=product leaves out what
# `make test` has run.
E2E := $(BIN)/python -m pytest e2e -n 3 --no-loadscope-reorder -rs
e2e: setup-dev
	$(E2E) -m "not soak$(if $(WITHOUT), and not $(WITHOUT))"

product:
	$(E2E) -m product

# What the operator set out to do, row by row, with pass, fail or "needs a GPU".
goals: setup-dev
	@$(BIN)/python -m e2e.goals

cluster: setup-dev
	@$(BIN)/python -m e2e.ground up --released

# slipway is on its PATH, and could install nothing in there.
cluster-shell: setup-dev setup
	@$(BIN)/python -m e2e.ground shell

cluster-down: setup-dev
	@$(BIN)/python -m e2e.ground down

soak: setup-dev
	$(BIN)/python -m pytest tests/soak e2e -m soak -s -p no:cacheprovider

bench: setup-dev
	$(BIN)/python bench/cpu.py

generate: setup-dev
	$(BIN)/python -m slipway.generate

setup: $(CPU_VENV)/.cpu kernels

setup-dev: $(VENV)/.dev $(CLIENTS)/.clients $(OLDEST)/triton $(SUITE) kernels browser

# After an environment, whose making installs the compiler where there is none.
kernels:
	@tools/step "Compiling the CPU kernels" $(PYTHON) -m slipway_kernels.build >/dev/null

# After an environment: two apt-get at once disturb each other.
browser: | $(VENV)/.dev
	@command -v chromium >/dev/null || tools/packages.sh chromium >&2 || echo "Without it the console is not tested." >&2

$(CPU_VENV)/.cpu:
	@tools/setup.sh "$(PYTHON)" "$(CPU_VENV)" cpu >&2
	@touch $@

$(VENV)/.dev:
	@tools/setup.sh "$(PYTHON)" "$(VENV)" cpu,torch,operator,bench,otel,ray,dev >&2
	@touch $@

$(CLIENTS)/.clients:
	@tools/setup.sh "$(PYTHON)" "$(CLIENTS)" clients >&2
	@touch $@

$(OLDEST)/triton: | $(VENV)/.dev
	@tools/step "Installing Triton $(OLDEST_TRITON)" $(BIN)/python -m pip install -q --disable-pip-version-check \
		--no-deps --target $(OLDEST) triton==$(OLDEST_TRITON)

$(SUITE): | $(VENV)/.dev
	@tools/step "Fetching JSON Schema's test suite" $(BIN)/python -m slipway.load.package_index \
		$(@F).tar.gz $(SUITE_SHA256) $(@F) $@

clean:
	rm -rf build dist *.egg-info runtime/*.egg-info kernels/slipway_kernels/*.so
