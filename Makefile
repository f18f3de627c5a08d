# What a person types. Needs git, make, python3 with venv, and a C++ compiler; everything else is put into .venv.
#
#   make qualify   build the engine, get two models, run two bundled protocols, print the verdicts, audit the evidence
#   make test      lint, types, native tests and all tests, against the installed wheel
#   make nightly   the long ones: sanitizers, every fault at every step, mutants, fuzzing, and the slowed engine that must FAIL
#   make threads   the server's tests under ThreadSanitizer, ggml included (part of make nightly)
#   make bench     speed of the engine and of the harness's own parts
#   make clients   real client programs against the bundled server
#   make lint      ruff and mypy only
#   make clean     remove what these targets made (never a store with evidence)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
STAMPS := .venv/stamps
# pip says nothing while it compiles or downloads for minutes.
PATIENTLY := $(PYTHON) .ci/patiently
# On two cores the first option's kernels multiply up to 2.5 times as fast. With the second, products of F16 numbers are
# summed in single precision everywhere: where AVX512-FP16 exists, this ggml would sum them in half precision, which
# changes token ids. pip's own cache ignores the arguments.
NO_HALF_SUMS := $(shell c++ -mno-avx512fp16 -x c++ -fsyntax-only /dev/null 2>/dev/null && echo -mno-avx512fp16)
GGML_ARGUMENTS := -DGGML_LLAMAFILE=ON $(if $(NO_HALF_SUMS),-DCMAKE_C_FLAGS=$(NO_HALF_SUMS) -DCMAKE_CXX_FLAGS=$(NO_HALF_SUMS))
# ggml is compiled for this very processor and with these arguments; another one of either builds it again.
WHEELS := .cache/wheels/$(shell (grep -m1 -E '^(flags|Features)' /proc/cpuinfo; echo '$(GGML_ARGUMENTS)') | sha256sum | cut -c1-12)
JOBS ?= $(shell nproc)
# Tests start engines and measure: more of them at once would only wait for each other.
TEST_JOBS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))
# A test that no signal ends would hold everything up: its process ends with its stacks, the others go on.
HANGS := -o faulthandler_timeout=1200 -o faulthandler_exit_on_timeout=true
# How long `make nightly` fuzzes.
FUZZ_SECONDS ?= 1200
# How many mutants of each group `make nightly` tries, and the share in percent that tests must notice at least.
MUTANTS ?= 200
MUTANT_FLOORS := protocols:75 protocols-more:55 audit:65 qsa:75
# A folder that happens to be the current one must not stand before the installed packages.
export PYTHONSAFEPATH := 1
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

HOUSES := protocols engine recorder reports harness
SOURCES := $(shell find $(HOUSES) -type f -not -path '*/__pycache__/*' -not -path 'engine/tests/*' -not -path 'engine/tools/*')
PACKAGE := pyproject.toml README.md LICENSE
GGML := ggml-python==0.0.45

.PHONY: qualify test lint native nightly threads bench clients clean

qualify: $(STAMPS)/assay
	@$(BIN)/assay model fetch smollm2
	@$(BIN)/assay model make qwen4exp-recall
	@ended=""; \
	for protocol in release-quick served-pair; do \
	  code=0; $(BIN)/assay run $$protocol || code=$$?; \
	  case $$code in \
	    0|1|3|4) ended="$$ended, $$protocol $$code" ;; \
	    *) echo "qualify: $$protocol did not run to its end (exit code $$code)" >&2; exit $$code ;; \
	  esac; \
	  $(BIN)/assay report; \
	done; \
	$(BIN)/assay audit; \
	echo "qualify: both jobs ran and their evidence audits; the verdicts' own exit codes:$${ended#,}"

test: lint native
	@$(BIN)/assay engine build --name tests --layout-salt 1
	@mkdir -p .cache
	@code=0; $(BIN)/pytest -n $(TEST_JOBS) --dist loadfile $(HANGS) --junitxml=.cache/tests.xml || code=$$?; \
	$(BIN)/python .ci/count .cache/tests.xml; \
	exit $$code

lint: $(STAMPS)/test
	$(BIN)/ruff check .
	$(BIN)/mypy

# The native tests share the objects of the wheel's build.
native: $(STAMPS)/test
	@$(BIN)/cmake .cache/build -DASSAY_TESTS=ON > .cache/native.log || { cat .cache/native.log >&2; exit 1; }
	@$(BIN)/cmake --build .cache/build > .cache/native.log || { tail -n 60 .cache/native.log >&2; exit 1; }
	@export ASSAY_TEST_MODEL=$$($(BIN)/assay model fetch smollm2 2> /dev/null | tail -n 1); \
	$(BIN)/ctest --test-dir .cache/build --output-on-failure --no-tests=error; \
	if [ -x .cache/build/tests/text_golden ]; then .cache/build/tests/text_golden tests/engine/golden; fi

nightly: test threads $(STAMPS)/fuzz
	ASSAY_TAMPER_CHANGES=10000 ASSAY_TEST_THOROUGH=1 $(BIN)/pytest tests/recorder/test_tamper.py tests/recorder/test_importing.py
	$(BIN)/cmake -G Ninja -S engine -B .cache/sanitized -DCMAKE_BUILD_TYPE=Release -DASSAY_TESTS=ON \
	    -DASSAY_SANITIZE=address,undefined -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	    -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja
	$(BIN)/cmake --build .cache/sanitized
	$(BIN)/ctest --test-dir .cache/sanitized --output-on-failure --no-tests=error
	for floor in $(MUTANT_FLOORS); do \
	  PYTHONPATH=tests/mutation $(BIN)/python tests/mutation/mutate.py $${floor%:*} --sample $(MUTANTS) --at-least $${floor#*:}; \
	done
	ASSAY_QSA_HISTORIES=10000 $(BIN)/pytest tests/engine/test_qsa_histories.py
	ASSAY_TEST_THOROUGH=1 $(BIN)/pytest --timeout=7200 tests/recorder/test_faults.py tests/engine/test_recall_model.py tests/harness/test_release_quick.py tests/engine/test_server_drafts.py \
	    tests/engine/test_server_recall.py
	@rm -rf .cache/fuzz && cp -r tests/fuzz/corpus/sse .cache/fuzz
	$(BIN)/python tests/fuzz/fuzz_sse.py -max_total_time=$(FUZZ_SECONDS) -max_len=700 -dict=tests/fuzz/sse.dict .cache/fuzz
	for target in gguf tokenizer http; do $(BIN)/python tests/fuzz/fuzz_engine.py $$target $(FUZZ_SECONDS); done
	ASSAY_FULL_SIMULATION=1 $(BIN)/pytest tests/protocols/test_simulate.py tests/test_verdict_docs.py
	@code=0; $(BIN)/assay run served-slow-control || code=$$?; \
	if [ $$code -ne 1 ]; then echo "nightly: the slowed engine must FAIL, but the exit code is $$code" >&2; exit 1; fi

# ThreadSanitizer has to see every thread's locks: ggml is built with it too, and without OpenMP, whose barriers it
# does not know.
.cache/threads/ggml: | $(STAMPS)/venv
	@echo "building $(GGML) with ThreadSanitizer"
	@rm -rf .cache/threads && mkdir -p .cache/threads
	@CMAKE_ARGS="-DGGML_OPENMP=OFF -DCMAKE_C_FLAGS=-fsanitize=thread -DCMAKE_CXX_FLAGS=-fsanitize=thread" \
	    $(PIP) wheel --no-cache-dir --no-deps --wheel-dir .cache/threads $(GGML)
	@$(PIP) install --no-deps --target .cache/threads .cache/threads/ggml_python-*.whl

# Not those that limit the address space, which ThreadSanitizer needs for itself, or that take minutes with it.
THREAD_TESTS := requests slots http images drafts start
threads: $(STAMPS)/test .cache/threads/ggml
	$(BIN)/cmake -G Ninja -S engine -B .cache/threads/build -DCMAKE_BUILD_TYPE=Release -DASSAY_SANITIZE=thread \
	    -DASSAY_GGML_DIR=$(CURDIR)/.cache/threads/ggml -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	    -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja
	$(BIN)/cmake --build .cache/threads/build
	ASSAY_ENGINE_DIR=$(CURDIR)/.cache/threads/build TSAN_OPTIONS=halt_on_error=1:exitcode=66 $(BIN)/pytest --timeout=1200 \
	    $(THREAD_TESTS:%=tests/engine/test_server_%.py)

bench: $(STAMPS)/bench
	@$(BIN)/assay model fetch smollm2
	$(BIN)/assay engine bench --model smollm2
	$(BIN)/python tests/bench/bench_sse.py
	$(BIN)/python tests/bench/bench_clients.py
	@if compgen -G 'tests/bench/test_*.py' > /dev/null; then $(BIN)/pytest tests/bench --benchmark-only; fi

clients: $(STAMPS)/clients
	@$(BIN)/assay model fetch smollm2
	$(BIN)/pytest tests/clients

clean:
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks

# ---------------------------------------------------------------- set-up, each step once
$(STAMPS)/venv:
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv
	@mkdir -p $(STAMPS) && touch $@

$(WHEELS)/ggml: | $(STAMPS)/venv
	@echo "building $(GGML) with $(GGML_ARGUMENTS) (once: a minute on two idle cores, 4 to 11 on busy ones)"
	@mkdir -p $(WHEELS) && rm -f $(WHEELS)/ggml_python-*.whl
	@CMAKE_ARGS="$(GGML_ARGUMENTS)" $(PATIENTLY) $(PIP) wheel --no-cache-dir --no-deps --wheel-dir $(WHEELS) $(GGML)
	@echo "$(GGML) $(GGML_ARGUMENTS)" > $@

$(STAMPS)/dependencies: pyproject.toml .ci/requirements $(WHEELS)/ggml | $(STAMPS)/venv
	@echo "installing what Assay is built with and runs with"
	@$(PIP) install --no-deps --force-reinstall $(WHEELS)/ggml_python-*.whl
	@$(BIN)/python .ci/requirements build run > .cache/requirements.txt
	@$(PATIENTLY) $(PIP) install -r .cache/requirements.txt
	@touch $@

# A wheel, never an editable install: what is tested is what a user gets.
$(STAMPS)/assay: $(STAMPS)/dependencies $(SOURCES) $(PACKAGE)
	@echo "compiling the engine and installing Assay (the first time a minute on two idle cores, 4 to 18 on busy ones)"
	@rm -rf .cache/dist && mkdir -p .cache/dist
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PATIENTLY) $(PIP) wheel --no-cache-dir --no-build-isolation --no-deps \
	    --wheel-dir .cache/dist --config-settings=build-dir=.cache/build .
	@$(PIP) install --no-deps --force-reinstall .cache/dist/assay-*.whl
	@touch $@

$(STAMPS)/test: $(STAMPS)/assay pyproject.toml
	@echo "installing what the tests need"
	@$(BIN)/python .ci/requirements test > .cache/requirements-test.txt
	@$(PATIENTLY) $(PIP) install -r .cache/requirements-test.txt
	@touch $@

$(STAMPS)/clients $(STAMPS)/bench $(STAMPS)/fuzz: $(STAMPS)/%: $(STAMPS)/test
	@echo "installing what only make $* needs"
	@$(BIN)/python .ci/requirements $* > .cache/requirements-$*.txt
	@$(PATIENTLY) $(PIP) install -r .cache/requirements-$*.txt
	@touch $@
