# Two commands: `make demo` (from nothing to a measured matrix) and `make test` (from nothing to all tests).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint browser postgres test-vllm test-transformers seed-page pictures peers clean

$(VENV)/.engine: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[engine,site]'
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

# The page's tests need a browser: installed where this is root on a Debian system, else they say that they were skipped.
browser:
	@command -v chromium >/dev/null || test ! -x /usr/bin/apt-get || test "$$(id -u)" -ne 0 || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }

# The site's tests run on SQLite and on a PostgreSQL that they start themselves: installed as the browser is.
postgres:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || \
	  test ! -x /usr/bin/apt-get || test "$$(id -u)" -ne 0 || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql; }

# First what measures no time, two at once; then, alone, what does.
test: lint browser postgres
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not timing and not vllm and not transformers'
	$(BIN)/python -m pytest -m 'timing and not vllm and not transformers'

test-vllm: $(VENV)/.dev
	sh tests/engines/vllm.sh $(PYTHON)
	FLATOUT_VLLM=.venv-vllm/bin/python $(BIN)/python -m pytest -m vllm

test-transformers: $(VENV)/.dev
	sh tests/engines/transformers.sh $(PYTHON)
	FLATOUT_TRANSFORMERS=.venv-transformers/bin/python $(BIN)/python -m pytest -m transformers

# The whole published matrix of the seed, given back by the rig; prints each row beside the seed's.
seed-page: $(VENV)/.dev
	$(BIN)/python -m benchmarks.seed_page

# Every picture of a page in README and docs, measured anew.
pictures: $(VENV)/.dev browser
	$(BIN)/python -m benchmarks.pictures

# What other tools report about a server of known speed, beside the truth; installs them (about 7 GB) where they are not there.
peers: $(VENV)/.dev
	sh benchmarks/peers.sh $(PYTHON)
	$(BIN)/python benchmarks/peers.py --md

clean:
	rm -rf $(VENV) .venv-vllm .venv-transformers .venv-peers .pytest_cache .mypy_cache .ruff_cache .hypothesis
