# One command each to set up, build, test, lint, measure. `make help` lists them; every target does what it needs first, and a
# second run only does what has changed.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# More words for `pip install torch`, e.g. another index with a CPU-only build.
TORCH_INDEX_ARGS ?=
TORCH ?= torch==2.13.0
# Steps of each of the three runs of the ResNet-18 demo.
STEPS ?= 45
# MiniLM's take longer: two for five of those.
MINILM_STEPS ?= $(shell expr 2 "*" $(STEPS) / 5 "|" 4 | sed "s/^[123]\$$/4/")
# Words for benchmarks/bench.py, e.g. BENCH_ARGS="--list".
BENCH_ARGS ?=
# Words for benchmarks/paper/make.py, e.g. PAPER_ARGS=--draw.
PAPER_ARGS ?=
PYTEST_ARGS ?=
# Processes that share the Python tests, a file at a time.
PYTEST_JOBS ?= $(shell n=$(JOBS); echo $$((n < 4 ? n : 4)))
# TIDY=1 adds clang-tidy to `make lint`, where it is installed.
TIDY ?=

# The interpreter whose torch sees the GPU, and words for benchmarks/gpu/measure.py.
GPU_PYTHON ?= $(PYTHON)
GPU_ARGS ?=

BIN := $(VENV)/bin
BUILD := build/dev
ASAN := build/asan
ASAN_TORCH := build/asan-torch
TSAN := build/tsan
INSTALLED := build/install
EXAMPLE := build/example
PACKAGES := build/packages
GPU_BUILD := build/gpu
IN_GPU := PYTHONPATH="$(abspath $(GPU_BUILD))/site" POET_SOLVER="$(abspath $(GPU_BUILD))/poet-solver" CUBLAS_WORKSPACE_CONFIG=:4096:8
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
comma := ,
SAY := @printf '==> %s\n'
SOURCES := -type f '(' -name '*.cpp' -o -name '*.h' -o -name '*.cmake' -o -name CMakeLists.txt -o -name '*.py' ')'
NATIVE := $(shell find csrc cmake _build_backend $(SOURCES)) CMakeLists.txt pyproject.toml
CPP_TESTS := $(shell find tests/cpp $(SOURCES))
PYTEST = $(BIN)/python -m pytest -q -n $(PYTEST_JOBS) --dist loadfile
IN_VENV := PATH="$(abspath $(BIN)):$$PATH"
# run(LOG, COMMAND): the command's output goes to a file, whose end is shown when it fails; meanwhile, how far the build is.
run = tools/watched.sh $(1) bash -c '$(subst ','\'',$(2))'
# Suites of poet_core: what has threads, and what valgrind gets through in minutes.
THREADED := TransferQueue*:Ways/StorePipeline*:*IoEngine*:PageStore*:*PageStore*:*StoreFault*:StoreDamage*:PageArena*:FileIo*:WorkMeter*:ChildProcess*
PLAIN := Graph*:Coarsening*:Recipes.*:Cycles*:Slicing*:Json*:ByteIo*:Compact*:Schedule*:RewrittenGraph*:EnergyBudget*:Simulator.*:SimulatorPaging*:Program*:Liveness*:Chunk*:Extent*:StoreDamage*:PageStoreTest.*:Ways/StorePipeline*:*IoEngine*:TransferQueue.*:PageMap*:-*FiveGigabytes*:ProgramSearch*
SLOW_UNDER_ASAN := ^(Optimality.PagingAgrees|Optimality.WithOverlap|Optimality.LeastBudget|Optimality.LeastMemory|Moments.BoundsAreNeverAbove|CoarsePlan.IsOneOf|Infeasible.NotWhere|Infeasible.TheLeastBudget|Solvers/Deterministic|Metamorphic|SafeBound.IsNeverAbove|BoundOverAll.IsNeverAbove|PathCuts.AreKept|StepsToAProof.EndAt|Poet.*(FindsTheOptimum|NeverBeats)|Moccasin.(FindsTheOptimum|NeverBeats|MoreRetention)|Methods.KeepTheirPromises|Checkmate.FindsTheOptimum|Candidates.)
CPP_FILES = $(shell git ls-files -co --exclude-standard 'csrc/*.cpp' 'csrc/*.h' 'tests/cpp/*.cpp' 'tests/cpp/*.h')

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup build demo test test-cpp test-asan test-asan-torch test-tsan test-valgrind test-python test-example test-wheel verify lint format bench report paper \
  compatibility nightly gpu clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- setup: system packages, virtual environment, torch, solver ------------------------------------------------------
setup: $(VENV)/.poet-tools  ## virtual environment, torch, CBC and the build tools

build/.system:
	$(SAY) "system packages (compiler, CBC, GoogleTest)"
	@tools/system_packages.sh
	@mkdir -p build && touch $@

$(VENV)/.poet-torch: | build/.system
	$(SAY) "virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install 'pip>=23.1'  # Debian 12 and Ubuntu 22.04 bring older ones, which know no -C
	$(SAY) "$(TORCH)"
	@$(PIP) install $(TORCH_INDEX_ARGS) $(TORCH)
	@touch $@

$(VENV)/.poet-tools: $(VENV)/.poet-torch
	$(SAY) "build tools"
	@$(PIP) install 'scikit-build-core>=0.11' 'nlohmann-json>=3.11' 'cmake>=3.24,<5' ninja
	@if pkg-config --exists cbc 2>/dev/null; then \
	  printf '==> solver: CBC %s of the system\n' "$$(pkg-config --modversion cbc)"; \
	else printf '==> solver: cbcbox from PyPI (large)\n'; $(PIP) install 'cbcbox>=2.935'; fi
	$(SAY) "HiGHS, for the tests of its back end"
	@$(PIP) install 'highsbox>=1.10'
	@touch $@

# ---- build: poet into the virtual environment ---------------------------------------------------------------------------
build: $(VENV)/.poet-built  ## build poet and install it, editable, with what tests and demo need

$(VENV)/.poet-built: $(VENV)/.poet-tools $(NATIVE)
	$(SAY) "build poet (the log is build/build.log) and install it with what tests, demo and lint need"
	@$(call run,build/build.log,$(IN_VENV) $(BIN)/python -m pip --disable-pip-version-check install -v \
	  --no-build-isolation -C build-dir=$(BUILD) \
	  -C cmake.define.POET_WARNINGS_AS_ERRORS=ON -e '.[dev]')
	@$(PIP) install --no-deps 'timm>=1.0.20'  # it wants torchvision, whose wheel fits one build of torch only
	@grep -hoE 'poet: (solver|torch|JSON).*' build/build.log | sort -u || true
	@touch $@

# ---- use ----------------------------------------------------------------------------------------------------------------
demo: build  ## train ResNet-18 on real digits and MiniLM on docstrings: plain, checkpointed, with poet
	$(SAY) "demo: ResNet-18 on scikit-learn's digits, $(STEPS) steps each"
	@$(BIN)/python demo/digits_resnet18.py --steps $(STEPS)
	$(SAY) "demo: MiniLM on the standard library's docstrings, $(MINILM_STEPS) steps each"
	@$(BIN)/python demo/docstrings_minilm.py --steps $(MINILM_STEPS)

test: test-cpp test-asan test-example test-python  ## every test: C++, C++ under ASan and UBSan, the C++ example, Python

$(BUILD)/.tests-built: $(VENV)/.poet-built $(CPP_TESTS)
	$(SAY) "build the C++ tests"
	@$(call run,build/tests.log,export $(IN_VENV); cmake -S . -B $(BUILD) -DPOET_BUILD_TESTS=ON && cmake --build $(BUILD))
	@touch $@

test-cpp: $(BUILD)/.tests-built  ## the GoogleTest binaries
	$(SAY) "C++ tests"
	@$(call run,build/ctest.log,$(BIN)/ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure --no-tests=error)
	@tail -n 3 build/ctest.log

$(ASAN)/.tests-built: $(VENV)/.poet-tools $(NATIVE) $(CPP_TESTS)
	$(SAY) "build poet_core and its tests with AddressSanitizer and UndefinedBehaviorSanitizer"
	@mkdir -p $(ASAN)
	@$(call run,build/asan.log,export $(IN_VENV); cmake -S . -B $(ASAN) -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -DPOET_BUILD_TORCH=OFF -DPOET_BUILD_TESTS=ON '-DPOET_SANITIZE=address$(comma)undefined' && cmake --build $(ASAN))
	@touch $@

# ASAN_ALL=1: those too whose own search for the truth takes minutes there, and finds no other faults of memory.
test-asan: $(ASAN)/.tests-built  ## poet_core's tests under ASan and UBSan
	$(SAY) "C++ tests of poet_core under ASan and UBSan"
	@$(call run,build/ctest-asan.log,LSAN_OPTIONS=suppressions=$(abspath tools/lsan.supp):print_suppressions=0 \
	  UBSAN_OPTIONS=print_stacktrace=1 \
	  $(BIN)/ctest --test-dir $(ASAN) -j $(JOBS) $(if $(ASAN_ALL),,-E '$(SLOW_UNDER_ASAN)') --output-on-failure --no-tests=error)
	@tail -n 3 build/ctest-asan.log

# torch itself is as it comes: what is checked is our own code, and what it hands to torch. Its own leaks are not looked for.
$(ASAN_TORCH)/.tests-built: $(VENV)/.poet-tools $(NATIVE) $(CPP_TESTS)
	$(SAY) "build poet_torch and its tests with AddressSanitizer and UndefinedBehaviorSanitizer"
	@mkdir -p $(ASAN_TORCH)
	@$(call run,build/asan-torch.log,export $(IN_VENV); cmake -S . -B $(ASAN_TORCH) -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -DPOET_UNITY=OFF -DPOET_BUILD_TESTS=ON '-DPOET_SANITIZE=address$(comma)undefined' && cmake --build $(ASAN_TORCH) --target poet_torch_tests)
	@touch $@

test-asan-torch: $(ASAN_TORCH)/.tests-built  ## poet_torch's tests under ASan and UBSan
	$(SAY) "C++ tests of poet_torch under ASan and UBSan"
	@$(call run,build/asan-torch-tests.log,ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  $(ASAN_TORCH)/tests/cpp/poet_torch_tests --gtest_brief=1)
	@tail -n 3 build/asan-torch-tests.log

$(TSAN)/.tests-built: $(VENV)/.poet-tools $(NATIVE) $(CPP_TESTS)
	$(SAY) "build poet_core and its tests with ThreadSanitizer"
	@mkdir -p $(TSAN)
	@$(call run,build/tsan.log,export $(IN_VENV); cmake -S . -B $(TSAN) -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  -DPOET_BUILD_TORCH=OFF -DPOET_UNITY=OFF -DPOET_BUILD_TESTS=ON -DPOET_SANITIZE=thread && cmake --build $(TSAN) --target poet_core_tests)
	@touch $@

test-tsan: $(TSAN)/.tests-built  ## what has threads in poet_core, under ThreadSanitizer
	$(SAY) "C++ tests of poet_core with threads, under ThreadSanitizer"
	@$(call run,build/tsan-tests.log,TSAN_OPTIONS=second_deadlock_stack=1 $(TSAN)/tests/cpp/poet_core_tests --gtest_brief=1 --gtest_filter='$(THREADED)')
	@tail -n 3 build/tsan-tests.log

# Reads of memory that nothing has written, which no sanitizer here sees.
test-valgrind: $(BUILD)/.tests-built  ## poet_core without the searches, under valgrind
	$(SAY) "C++ tests of poet_core under valgrind"
	@$(call run,build/valgrind.log,valgrind --quiet --error-exitcode=1 --trace-children=no --suppressions=tools/valgrind.supp \
	  $(BUILD)/tests/cpp/poet_core_tests --gtest_brief=1 --gtest_filter='$(PLAIN)')
	@tail -n 3 build/valgrind.log

$(INSTALLED)/.done: $(VENV)/.poet-built
	$(SAY) "install poet's C++ package into $(INSTALLED)"
	@rm -rf $(INSTALLED)
	@$(call run,build/install.log,$(IN_VENV) cmake --install $(BUILD) --prefix $(INSTALLED))
	@touch $@

# As a stranger would: the example knows the installed package and torch, and none of our sources.
$(EXAMPLE)/train: $(INSTALLED)/.done $(wildcard examples/cpp/*)
	$(SAY) "build the C++ example against it"
	@mkdir -p $(EXAMPLE)
	@$(call run,build/example.log,export $(IN_VENV); cmake -S examples/cpp -B $(EXAMPLE) -G Ninja \
	  -DCMAKE_PREFIX_PATH=$(abspath $(INSTALLED))/poet -DPython_EXECUTABLE=$(abspath $(BIN))/python \
	  && cmake --build $(EXAMPLE))
	@touch $@

test-example: $(EXAMPLE)/train  ## examples/cpp, built against the installed package
	$(SAY) "C++ example: plain training and poet, bit for bit"
	@$(EXAMPLE)/train

test-python: build  ## pytest
	$(SAY) "Python tests"
	@$(PYTEST) -m "not nightly" $(PYTEST_ARGS)

# sdist -> wheel -> an environment with nothing but torch and what the wheel declares.
$(PACKAGES)/.built: $(VENV)/.poet-built $(wildcard _build_backend/*)
	$(SAY) "sdist, and the wheel that is built from it"
	@rm -rf $(PACKAGES)
	@$(call run,build/packages.log,$(IN_VENV) $(BIN)/python -m build --no-isolation --outdir $(PACKAGES))
	@ls -1s --block-size=M $(PACKAGES)
	@touch $@

test-wheel: $(PACKAGES)/.built  ## the wheel in a fresh environment: needs no solver, runs README's code
	$(SAY) "the wheel in a fresh environment"
	@rm -rf build/wheel-venv && $(PYTHON) -m venv build/wheel-venv
	@build/wheel-venv/bin/python -m pip --disable-pip-version-check -q install $(TORCH_INDEX_ARGS) $(TORCH) $(PACKAGES)/*.whl
	@mkdir -p build/elsewhere && cd build/elsewhere && env -u PYTHONPATH -u POET_SOLVER \
	  ../wheel-venv/bin/python $(abspath tools/check_wheel.py) $(abspath README.md)

verify: build  ## the Python tests once more under POET_VERIFY=1
	$(SAY) "Python tests with every restored value checked"
	@POET_VERIFY=1 $(PYTEST) -m "not nightly" $(PYTEST_ARGS)

lint: build  ## ruff, mypy --strict, clang-format
	$(SAY) "ruff"
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(SAY) "mypy --strict"
	@$(BIN)/mypy
	$(SAY) "clang-format"
	@$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	@if [ -n "$(TIDY)" ] && command -v clang-tidy > /dev/null; then printf '==> clang-tidy\n'; \
	  clang-tidy -p $(BUILD) --quiet $(filter %.cpp,$(filter csrc/%,$(CPP_FILES))); fi

format: build  ## rewrite the sources as ruff and clang-format want them
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format . ; $(BIN)/clang-format -i $(CPP_FILES)

bench: build  ## measure every bound of benchmarks/bounds.toml; fails on a broken one
	$(SAY) "bounds"
	@$(BIN)/python benchmarks/bench.py $(BENCH_ARGS)
	@$(BIN)/python benchmarks/report.py && $(BIN)/python benchmarks/draw.py

report: build  ## write README's figures from benchmarks/bounds.toml
	@$(BIN)/python benchmarks/report.py && $(BIN)/python benchmarks/draw.py

paper: build  ## draw the paper's figures and tables again: docs/paper.md (goes on where the last run ended)
	$(SAY) "the paper's figures and tables"
	@$(BIN)/python benchmarks/paper/make.py $(PAPER_ARGS)

compatibility: build  ## write docs/compatibility.md and docs/package-models.md from their tests, the nightly ones too
	$(SAY) "compatibility"
	@$(BIN)/python -m pytest -q -o junit_family=xunit1 --junitxml=build/compatibility.xml $$($(BIN)/python tools/compatibility.py --tests) \
	  -k "not page_of_what_works and not every_cell_of_the_page"
	@$(BIN)/python tools/compatibility.py build/compatibility.xml
	$(SAY) "models of packages"
	@$(BIN)/python -m pytest -q -o junit_family=xunit1 --junitxml=build/package_models.xml tests/python/test_package_zoo.py \
	  --deselect tests/python/test_package_zoo.py::test_the_page_of_models_names_every_one
	@$(BIN)/python tools/package_models.py build/package_models.xml

nightly: ASAN_ALL := 1
nightly: test test-wheel test-asan-torch test-tsan test-valgrind verify  ## what is too long for CI
	$(SAY) "long Python tests"
	@$(PYTEST) -m nightly $(PYTEST_ARGS) || [ $$? -eq 5 ]
	$(SAY) "C++ tests, long form (the log is build/properties.log)"
	@$(call run,build/properties.log,POET_NIGHTLY=1 POET_PROPERTY_FACTOR=10 $(BUILD)/tests/cpp/poet_core_tests \
	  --gtest_filter='Optimality.*:Metamorphic.*:Infeasible.*:BadInput.*:PathCuts.*:BoundOverAll.*:BetweenMoments*:Moments*:PageStoreTest.HoldsAValueOfFiveGigabytes')
	$(SAY) "damaged files, ten minutes"
	@$(IN_VENV) tools/fuzz.sh $(abspath $(BIN))/python $(BUILD)/tests/cpp/fuzz/fuzz_readers 600
	@$(MAKE) --no-print-directory lint TIDY=1
	$(SAY) "every preset on every device (goes on where the last run ended: build/presets.jsonl)"
	@$(BIN)/python benchmarks/presets.py --all --out build/presets.jsonl
	@$(MAKE) --no-print-directory bench

# Into a folder of its own, with the torch that is there: nothing is installed. benchmarks/gpu/measure.py says what is measured.
$(GPU_BUILD)/.built: $(NATIVE) $(shell find python/poet -name '*.py')
	$(SAY) "build poet for the torch of $(GPU_PYTHON) (the log is build/gpu.log)"
	@mkdir -p $(GPU_BUILD)/site
	@$(call run,build/gpu.log,cmake -S . -B $(GPU_BUILD) -DPython_EXECUTABLE="$$($(GPU_PYTHON) -c "import sys; print(sys.executable)")" \
	  -DPOET_ANY_TORCH=ON -DPOET_WARNINGS_AS_ERRORS=OFF && cmake --build $(GPU_BUILD))
	@rm -rf $(GPU_BUILD)/site/poet && cp -r python/poet $(GPU_BUILD)/site/ && rm -f $(GPU_BUILD)/site/poet/_C.*.so
	@cp $(GPU_BUILD)/_C.*.so $(GPU_BUILD)/site/poet/ && cp -r profiles $(GPU_BUILD)/site/poet/
	@touch $@

gpu:  ## on a machine with a GPU: build with the torch of GPU_PYTHON, test and measure there
	@$(GPU_PYTHON) -c "import sys, torch; torch.cuda.is_available() or sys.exit('make gpu: the torch of $(GPU_PYTHON) sees no CUDA device')"
	@$(MAKE) --no-print-directory $(GPU_BUILD)/.built
	$(SAY) "tests on the GPU"
	@$(IN_GPU) $(GPU_PYTHON) -m pytest -q --noconftest tests/python/test_gpu.py tests/python/test_gpu_networks.py $(PYTEST_ARGS)
	$(SAY) "measurements on the GPU (figures: $(GPU_BUILD)/figures)"
	@$(IN_GPU) $(GPU_PYTHON) benchmarks/gpu/measure.py --out $(GPU_BUILD)/figures $(GPU_ARGS)

clean:  ## remove builds and the virtual environment
	rm -rf build dist out $(VENV)
