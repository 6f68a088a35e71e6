# Everything that is done with this project; `make` lists it. All of it happens in .venv, which is made when it is
# missing or when the lock has changed. Another Python: make PYTHON=python3.12 …

INSTALLED_PYTHON := $(if $(wildcard .venv/installed-*),$(shell .venv/bin/python -c 'print(".venv/bin/python")' 2>/dev/null))
PYTHON ?= $(or $(INSTALLED_PYTHON),python3)
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
INSTALLED := .venv/installed-$(PYTHON_VERSION)
BIN := .venv/bin
RUN := $(BIN)/python -m
COMPILE := $(RUN) uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header
# much of the tests' time is waiting: two processes more than processors; each imports everything, and that tests
# deployments starts a server of its own, so they stay few; tests/conftest.py says which files come first, and which
# stay together
PARALLEL = --numprocesses $(shell $(BIN)/python -c 'import os; print(min(4, os.cpu_count() + 2))') --dist loadfile \
	--no-loadscope-reorder
# tests start hundreds of processes, each of which would compile the same sources again
unexport PYTHONDONTWRITEBYTECODE
DEMO := demo-out
MINDSPORE := .venv-mindspore
JUDGE := $(MINDSPORE)/installed
TORCH := .venv-torch
TORCH_JUDGE := $(TORCH)/installed
MINDFORMERS := .venv-mindformers
MINDFORMERS_JUDGE := $(MINDFORMERS)/installed
MEGATRON := .venv-megatron
MEGATRON_JUDGE := $(MEGATRON)/installed
SIGNING := .venv-signing
SIGNING_JUDGE := $(SIGNING)/installed
VERL := .venv-verl
VERL_MERGER := $(VERL)/installed

.DEFAULT_GOAL := help
.PHONY: help install wheel demo demo-resilience deploy test test-all judges conformance fuzz bench docs screenshots \
	check format lock proto clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(INSTALLED) ## .venv with the locked dependencies and the command `reshard`

$(INSTALLED): pyproject.toml requirements/dev.lock requirements/installer.lock requirements/install.sh
	@rm -f .venv/installed-*
	@requirements/install.sh $(PYTHON)
	@touch $@

wheel: $(INSTALLED) ## dist/reshard-….whl, to be installed by pip anywhere
	$(RUN) hatchling build --target wheel

demo: $(INSTALLED) ## generates a checkpoint of 8 ranks, converts it to 4, verifies it
	@rm -rf $(DEMO)
	@$(RUN) demo.make_checkpoint $(DEMO)
	@echo
	$(BIN)/reshard convert $(DEMO)/checkpoint $(DEMO)/converted \
		--source-strategy $(DEMO)/strategy --target-strategy $(DEMO)/target_strategy --engine prefect
	@echo
	$(BIN)/reshard verify $(DEMO)/converted
	@printf '%s\n' '' \
		'Source: $(DEMO)/checkpoint, 8 ranks. Target: $(DEMO)/converted, 4 ranks.' \
		'Try next:' \
		'  $(BIN)/reshard inspect $(DEMO)/checkpoint' \
		'  $(BIN)/reshard inspect $(DEMO)/target_strategy' \
		'  $(BIN)/reshard plan $(DEMO)/checkpoint $(DEMO)/one --source-strategy $(DEMO)/strategy' \
		'  $(BIN)/reshard convert $(DEMO)/checkpoint $(DEMO)/one --source-strategy $(DEMO)/strategy --format safetensors'

demo-resilience: $(INSTALLED) ## a training of 8 processes fails, is recovered, converted, and goes on with 6; the same model?
	$(RUN) demo.resilience $(DEMO)/resilience

deploy: $(INSTALLED) ## makes the deployments, and what they need, on the Prefect server that PREFECT_API_URL names
	@$(BIN)/reshard deploy

test: $(INSTALLED) ## the quick tests
	$(RUN) pytest $(PARALLEL) -m "not slow"

test-all: $(INSTALLED) ## all tests; with SLOW_ONLY=1 those that `make test` leaves out
	$(RUN) pytest $(PARALLEL) $(if $(SLOW_ONLY),-m slow)

# MindSpore wants another numpy than the newest: it gets an environment of its own, with the lowest versions of what
# reshard requires, so that both can be tried in it
$(JUDGE): requirements/mindspore.lock | $(INSTALLED)
	@echo "install: MindSpore, into $(MINDSPORE)"
	@$(or $(INSTALLED_PYTHON),$(PYTHON)) -m venv --clear $(MINDSPORE)
	@$(RUN) uv pip install --quiet --python $(MINDSPORE)/bin/python --no-deps --require-hashes --requirement $< || \
		$(MINDSPORE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@

# as MindSpore has one; without torch's CUDA libraries, some gigabytes, so that the wheel is not the registry's own:
# uv and pip look for it where PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL say; DeepSpeed is Python alone, compiled nowhere
$(TORCH_JUDGE): requirements/torch.lock | $(INSTALLED)
	@echo "install: torch, transformers and DeepSpeed, into $(TORCH)"
	@$(or $(INSTALLED_PYTHON),$(PYTHON)) -m venv --clear $(TORCH)
	@UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" UV_EXTRA_INDEX_URL="$${UV_EXTRA_INDEX_URL:-$$PIP_EXTRA_INDEX_URL}" \
		$(RUN) uv pip install --quiet --python $(TORCH)/bin/python --no-deps --require-hashes --requirement $< || \
		$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@

# tried with Python 3.11 only: another one is looked for if that of .venv is not
$(MINDFORMERS_JUDGE): requirements/mindformers.lock | $(INSTALLED)
	@echo "install: MindFormers, into $(MINDFORMERS)"
	@fits='import sys; sys.exit(sys.version_info[:2] != (3, 11))'; \
	for python in $(or $(INSTALLED_PYTHON),$(PYTHON)) python3.11 ''; do \
		[ -n "$$python" ] || { echo "install: MindFormers needs Python 3.11, and there is no python3.11: install it" >&2; exit 1; }; \
		! "$$python" -c "$$fits" 2>/dev/null || break; \
	done; \
	"$$python" -m venv --clear $(MINDFORMERS)
	@$(RUN) uv pip install --quiet --python $(MINDFORMERS)/bin/python --no-deps --require-hashes --requirement $< || \
		$(MINDFORMERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@

# verl merges FSDP's ranks, which is measured beside reshard; it wants another transformers than the newest
$(VERL_MERGER): requirements/verl.lock | $(INSTALLED)
	@echo "install: verl, into $(VERL)"
	@$(or $(INSTALLED_PYTHON),$(PYTHON)) -m venv --clear $(VERL)
	@UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" UV_EXTRA_INDEX_URL="$${UV_EXTRA_INDEX_URL:-$$PIP_EXTRA_INDEX_URL}" \
		$(RUN) uv pip install --quiet --python $(VERL)/bin/python --no-deps --require-hashes --requirement $< || \
		$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@

# needs no more than torch as long as nothing runs on a GPU
$(MEGATRON_JUDGE): requirements/megatron.lock | $(INSTALLED)
	@echo "install: megatron-core, into $(MEGATRON)"
	@$(or $(INSTALLED_PYTHON),$(PYTHON)) -m venv --clear $(MEGATRON)
	@UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" UV_EXTRA_INDEX_URL="$${UV_EXTRA_INDEX_URL:-$$PIP_EXTRA_INDEX_URL}" \
		$(RUN) uv pip install --quiet --python $(MEGATRON)/bin/python --no-deps --require-hashes --requirement $< || \
		$(MEGATRON)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@

# signs models and checks their signatures; pyOpenSSL, which it needs for certificates, it does not name
$(SIGNING_JUDGE): requirements/signing.lock | $(INSTALLED)
	@echo "install: model-signing, into $(SIGNING)"
	@$(or $(INSTALLED_PYTHON),$(PYTHON)) -m venv --clear $(SIGNING)
	@$(RUN) uv pip install --quiet --python $(SIGNING)/bin/python --no-deps --require-hashes --requirement $< || \
		$(SIGNING)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@

judges: $(JUDGE) $(MINDFORMERS_JUDGE) $(TORCH_JUDGE) $(MEGATRON_JUDGE) $(SIGNING_JUDGE) ## the programs that judge in tests and conformance, each in an environment of its own

conformance: $(INSTALLED) judges ## random conversions, judged by MindSpore, MindFormers, PyTorch, transformers, DeepSpeed, Megatron-Core and model-signing; CASES=200 SEED=… or ONLY=<a case's seed> or API=<part of a name>
	@$(RUN) tests.conformance.run $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(API),--api "$(API)")

fuzz: $(INSTALLED) ## damaged and hostile files for every parser, a minute; SECONDS=600 SEED=… or ONLY=<a parser>
	@$(RUN) tests.fuzz.run $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

bench: $(INSTALLED) $(JUDGE) $(TORCH_JUDGE) $(VERL_MERGER) ## measures against cp, rclone, MindSpore, PyTorch, verl and DeepSpeed, half an hour; a part: SCENARIOS="main columns" ROUNDS=2
	$(RUN) benchmarks $(SCENARIOS) $(if $(ROUNDS),--rounds $(ROUNDS))

docs: $(INSTALLED) ## a site with search, of README and docs/, in build/site; dead links are errors
	$(RUN) docs.write_cli_reference
	$(RUN) docs.write_keywords
	$(RUN) sphinx --quiet --fail-on-warning --keep-going --conf-dir docs/site . build/site
	@echo "open build/site/index.html"

screenshots: $(INSTALLED) ## takes docs/screenshots from a real run; needs chromium (apt-get install chromium)
	$(RUN) docs.take_screenshots $(DIRECTORY)

check: $(INSTALLED) ## format, lint, types, import contracts
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(RUN) mypy
	$(BIN)/lint-imports --no-logo

format: $(INSTALLED) ## formats the code, and mends what the linter can
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

lock: $(INSTALLED) ## brings requirements/*.lock up to pyproject.toml, changing no more than needed
	$(COMPILE) pyproject.toml --group dev --group docs --extra s3 --extra obs --extra gs --extra azure --extra dask --output-file requirements/dev.lock
	$(COMPILE) pyproject.toml --all-extras --constraint requirements/dev.lock --output-file requirements/runtime.lock
	$(COMPILE) --group build --constraint requirements/dev.lock --output-file requirements/build.lock
	echo uv | $(COMPILE) - --output-file requirements/installer.lock
	printf 'mindspore==2.10.0\nnumpy<2; python_version < "3.13"\nsafetensors<0.8\n' | \
		$(COMPILE) --resolution lowest-direct pyproject.toml - --output-file requirements/mindspore.lock
	printf 'torch==2.13.0+cpu\ntransformers==5.23.0\naccelerate\ndeepspeed==0.19.8\npeft==0.21.2\nnumpy<3\nsafetensors\n' | \
		UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" UV_EXTRA_INDEX_URL="$${UV_EXTRA_INDEX_URL:-$$PIP_EXTRA_INDEX_URL}" \
		$(COMPILE) - --output-file requirements/torch.lock
	printf 'megatron-core==0.16.1\ntorch==2.13.0+cpu\nnumpy<3\nsafetensors\n' | \
		UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" UV_EXTRA_INDEX_URL="$${UV_EXTRA_INDEX_URL:-$$PIP_EXTRA_INDEX_URL}" \
		$(COMPILE) --constraint requirements/torch.lock - --output-file requirements/megatron.lock
	printf 'verl==0.9.1\ntorch==2.13.0+cpu\n' | \
		UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" UV_EXTRA_INDEX_URL="$${UV_EXTRA_INDEX_URL:-$$PIP_EXTRA_INDEX_URL}" \
		$(COMPILE) - --output-file requirements/verl.lock
	printf 'model-signing==1.1.1\npyopenssl\nsecuresystemslib\nin-toto-attestation\n' | \
		$(COMPILE) - --output-file requirements/signing.lock
	printf 'mindformers==2.0.0\nmindspore==2.10.0\nnumpy==1.26.4\nsafetensors==0.7.0\ndatasets==5.0.1\ncryptography\n' | \
		$(COMPILE) --override requirements/mindformers.override - --output-file requirements/mindformers.lock

proto: $(INSTALLED) ## generates the strategy messages from their .proto
	$(RUN) grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. core/strategy/strategy.proto

clean: ## removes .venv and everything generated
	rm -rf .venv $(MINDSPORE) $(MINDFORMERS) $(TORCH) $(MEGATRON) $(SIGNING) $(VERL) $(DEMO) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
