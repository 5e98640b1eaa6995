# make demo       train a translator on the generated corpus, score it, watch it translate, draw what it does
# make test       the test suite
# make bench      the benchmarks, one table of ratios and a figure
# make sanitize   the kernels under sanitizers
# All but the last set up .venv first; nothing but Python >= 3.10, make and (for the fast CPU kernels) a C++ compiler is needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# what the installed package is built from: a change here rebuilds it
SOURCES := pyproject.toml setup.py MANIFEST.in $(shell find csrc -type f)

.PHONY: setup demo demo-publish test test-all bench bench-publish sanitize lint format clean

setup: $(READY)

# torch first and by itself: the extension is built against the torch that is installed, not one of its own
$(READY): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0 "setuptools>=77" "pybind11>=2.13"
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[test]"
	@test ! -f gma_kernels/_native_missing.txt || { echo "no native backend:"; cat gma_kernels/_native_missing.txt; }
	touch $(READY)

demo: setup
	$(BIN)/gma demo

# the README's pictures
demo-publish: demo
	cp runs/demo/attention.png runs/demo/sweep/curve.png docs

test: setup
	$(BIN)/python -m pytest -m "not slow"

# with SimulEval, whose pinned requirements nobody else should have to meet
test-all: setup
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[test,simuleval]"
	$(BIN)/python -m pytest

# a case whose result is wrong fails here and appears in no table
bench: setup
	mkdir -p runs/bench
	$(BIN)/python -m pytest benchmarks --benchmark-only --benchmark-json=runs/bench/results.json --benchmark-columns=median
	$(BIN)/python benchmarks/report.py runs/bench/results.json

bench-publish: bench
	$(BIN)/python benchmarks/report.py runs/bench/results.json --publish

# the torch-free kernels under AddressSanitizer and UndefinedBehaviorSanitizer: random shapes, strides, edge values
ifeq ($(origin CXX),default)
CXX := c++
endif
FUZZ := build/fuzz
FUZZ_FLAGS := -std=c++17 -O1 -g -Wall -Wextra -ffp-contract=fast -fno-math-errno -fno-trapping-math -fsanitize=address,undefined -fno-sanitize-recover
CASES ?= 400
SEED ?= 1
ifneq ($(filter x86_64 amd64,$(shell uname -m)),)
build/fuzz/avx2.o: FUZZ_FLAGS += -mavx2 -mfma
build/fuzz/avx512.o: FUZZ_FLAGS += -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl
endif

sanitize: $(FUZZ)/fuzz
	$(FUZZ)/fuzz $(CASES) $(SEED)

$(FUZZ)/fuzz: $(patsubst csrc/cpu/%.cpp,$(FUZZ)/%.o,$(wildcard csrc/cpu/*.cpp)) tests/native_cpp/fuzz.cpp
	$(CXX) $(FUZZ_FLAGS) $^ -pthread -o $@

$(FUZZ)/%.o: csrc/cpu/%.cpp $(wildcard csrc/*.h csrc/cpu/*.h) Makefile
	mkdir -p $(FUZZ)
	$(CXX) $(FUZZ_FLAGS) -c $< -o $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist runs *.egg-info gma_kernels/*.so gma_kernels/_native_missing.txt
