# make env | demo | test | lint | bench | bench-env | clean
#
# Needs Python >= 3.11 with venv, git, make and a package index; everything else is installed into .venv.
# `make demo ARGS="max_steps=50 async_generation_ratio=2"` passes overrides on, `make test ARGS="-k admission"` pytest's options.

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.complete
STACK := base ray math dev
FILES := $(STACK:%=requirements/%.txt)
WORKERS ?= 2
ARGS  ?=

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,\
	$(shell $(name) -c 'import sys; print(sys.executable) if sys.version_info >= (3, 11) else None' 2>/dev/null)))

# The first process that imports a module leaves it compiled for all later ones. Compiling everything at the installation was
# measured: 27 s against 8 s, as most of torch and transformers is never imported; without compiled files every worker pays the 8 s.
unexport PYTHONDONTWRITEBYTECODE
export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

PIP := python -m pip install -qq --no-compile
TORCH = $$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' $(1))

.PHONY: env demo test lint bench bench-env clean

env: $(STAMP)

# Removed first and written last: an installation that was interrupted is taken up again.
$(STAMP): $(FILES) setup.py
	@rm -f $@
	@test -x $(BIN)/pip || test -n "$(PYTHON)" || { echo "no Python >= 3.11 found: install one, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/pip || "$(PYTHON)" -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make environments: install its venv module (Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "[1/3] torch (the largest download)"
	@$(BIN)/$(PIP) "$(call TORCH,requirements/base.txt)"
	@echo "[2/3] $(STACK)"
	@$(BIN)/$(PIP) $(FILES:%=-r %)
	@echo "[3/3] roll"
	@$(BIN)/$(PIP) --no-deps --editable .
	@touch $@

demo: env
	$(BIN)/python examples/embedded/make_embedded.py
	$(BIN)/python examples/start_rlvr_pipeline.py --config_name rlvr_config_async $(ARGS)

# One thread a process: as many tests run at once as there are cores. Tests marked `ray` share one worker (conftest.py).
test: lint
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup $(ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Minutes each; every one prints its table. Run one alone for its options: .venv/bin/python benchmarks/sync_vs_async.py --help
bench: env bench-env
	$(BIN)/python examples/embedded/make_embedded.py
	$(BIN)/python benchmarks/exact_world_table.py
	$(BIN)/python benchmarks/hf_infer_vs_generate.py
	$(BIN)/python benchmarks/sync_vs_async.py
	$(BIN)/python benchmarks/rlvr_vs_trl.py

# TRL's pins are not ours.
bench-env: $(VENV)-bench/.complete

$(VENV)-bench/.complete: requirements/bench.txt | $(STAMP)
	@$(BIN)/python -m venv $(VENV)-bench
	@$(VENV)-bench/bin/$(PIP) "$(call TORCH,$<)"
	@$(VENV)-bench/bin/$(PIP) -r $<
	@touch $@

# What was installed and made here; the runs in output/ stay.
clean:
	rm -rf $(VENV) $(VENV)-bench build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis examples/embedded/cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
