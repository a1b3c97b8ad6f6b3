# Two commands: `make demo` (from nothing to a measured matrix) and `make test` (from nothing to all tests).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint check test-vllm test-transformers clean

$(VENV)/.engine: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[engine]'
	touch $@

$(VENV)/.dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[engine,dev]'
	touch $@ $(VENV)/.engine

demo: $(VENV)/.engine
	$(BIN)/flatout demo

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -m 'not vllm and not transformers'

test-vllm: $(VENV)/.dev
	sh tests/engines/vllm.sh $(PYTHON)
	FLATOUT_VLLM=.venv-vllm/bin/python $(BIN)/python -m pytest -m vllm

test-transformers: $(VENV)/.dev
	sh tests/engines/transformers.sh $(PYTHON)
	FLATOUT_TRANSFORMERS=.venv-transformers/bin/python $(BIN)/python -m pytest -m transformers

clean:
	rm -rf $(VENV) .venv-vllm .venv-transformers .pytest_cache .mypy_cache .ruff_cache .hypothesis
