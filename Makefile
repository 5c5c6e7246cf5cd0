# `make demo` and `make test` need Python 3.11 to 3.14, git and make; tools/bootstrap.py makes .venv for both.
# Variables: PYTHON (interpreter for .venv), TORCH_INDEX_URL (where torch comes from), PYTEST_ARGS, PYTEST_WORKERS,
# P (the plugin that test-plugin tests).

SHELL := /bin/sh
PY := .venv/bin/python
DEMO := .demo/qwen3_5_dense-tiny
KERNEL_CACHE := $(CURDIR)/build/triton
BOOTSTRAP := $(or $(shell command -v python3),$(PYTHON),python3) tools/bootstrap.py
PYTEST_WORKERS ?= 2
PYTEST_ARGS ?=

# One thread per worker: two workers with two threads each would fight over the two cores the suite is sized for.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n $(PYTEST_WORKERS)
ifneq ($(filter-out 0 false,$(CI)),)
PYTEST += -W error
endif

.PHONY: help env env-dev demo test test-plugin test-slow test-kernels test-gpu lint format types bench docs dist clean clean-env

help: ## Show the targets.
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /\1|/' | \
		while IFS='|' read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done

env: ## Make .venv with vtcore, its plugins and torch.
	@$(BOOTSTRAP)

env-dev: ## The same, with what the tests and checks need.
	@$(BOOTSTRAP) --dev

demo: env ## Write a tiny checkpoint of random weights and generate text with it.
	@test -f $(DEMO)/config.json || { rm -rf $(DEMO).partial && \
		.venv/bin/vtcore make-checkpoint --arch qwen3_5_dense --size tiny $(DEMO).partial && \
		mv $(DEMO).partial $(DEMO); }
	@.venv/bin/vtcore generate $(DEMO) --prompt "The quick brown fox" --max-tokens 32
	@echo "next: docs/quickstart.md"

test: env-dev ## Run every test that is not slow; those of kernels are left to test-kernels.
	$(PYTEST) -m "not slow and not kernels" $(PYTEST_ARGS)

test-plugin: env-dev ## Run one plugin's tests with nothing but what it declares: P=NAME.
	@$(PY) tools/plugin_tests.py "$(P)" -m "not slow" $(PYTEST_ARGS)

test-slow: env-dev ## Run the slow tests.
	@status=0; $(PY) -m pytest -m "slow and not kernels" --collect-only -qq >/dev/null 2>&1 || status=$$?; \
	if [ $$status -eq 5 ]; then echo "no slow tests"; else $(PYTEST) -m "slow and not kernels" $(PYTEST_ARGS); fi

# Two runs, since Triton decides while kernels are imported whether it interprets or compiles them.
test-kernels: env-dev ## Run the kernels in Triton's interpreter, then compile all of them for sm_90.
	TRITON_INTERPRET=1 $(PYTEST) -m kernels $(wildcard tests/kernels plugins/*/tests/kernels) $(PYTEST_ARGS)
	TRITON_CACHE_DIR="$(KERNEL_CACHE)" $(PYTEST) -m kernels \
		$(wildcard tests/kernel_compile plugins/*/tests/kernel_compile) $(PYTEST_ARGS)

test-gpu: env-dev ## On a machine with a GPU: the kernels there, and engines against transformers' float64.
	@$(PY) -c "import torch, sys; sys.exit(None if torch.cuda.is_available() else 'torch sees no GPU here')"
	$(PY) -m pytest -m "gpu or kernels" $(PYTEST_ARGS)

lint: env-dev ## Check style and format.
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: env-dev ## Format, and mend what the linter can.
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: env-dev ## Check types, strictly.
	$(PY) -m mypy vtcore plugins/*/src docs/examples/*/src tools

bench: env-dev ## Measure against transformers on this CPU.
	$(PY) bench/cpu.py

docs: env-dev ## Write the references that are generated from the code.
	$(PY) tools/reference.py

dist: env-dev ## Build source distribution and wheel of every distribution into dist/.
	@rm -rf dist
	@$(PY) tools/build_dist.py

clean: ## Remove what builds, checks and the demo wrote.
	rm -rf build plugins/*/build docs/examples/*/build dist .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o -type d -name __pycache__ -print | xargs rm -rf

clean-env: ## Remove .venv, and those of test-plugin.
	rm -rf .venv .venv-plugin-*
