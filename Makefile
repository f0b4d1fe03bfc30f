# Everything runs in .venv, which `make setup` makes from requirements/cpu.lock.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.synuc-setup
TORCH := $(shell sed -n 's/^torch==/torch==/p' requirements/cpu.lock)

.PHONY: setup demo test lint types unit local servers test-slow bench-synthesis bench-train bench-serve bench-review bench-scale chaos lock clean

setup: $(STAMP)

# torch's CPU build is not on PyPI; --extra-index-url names where it is published. The rest is exactly the lock.
$(STAMP): requirements/cpu.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(shell grep '^uv==' requirements/cpu.lock)"
	$(BIN)/python -c "import importlib.metadata as m; assert 'torch==' + m.version('torch') == '$(TORCH)'" 2>/dev/null || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --retries 1 --timeout 60 \
	    --extra-index-url https://download.pytorch.org/whl/cpu "$(TORCH)"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -r requirements/cpu.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $@

demo: setup
	$(BIN)/synuc synthesize --config configs/local.yaml --config configs/demo.yaml --run runs/demo
	$(BIN)/synuc export runs/demo
	$(BIN)/synuc report runs/demo
	$(BIN)/synuc show runs/demo

test: lint types unit local

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/pytest tests/unit

# Real Ray, real vLLM, the embedded model: one process, so that only one engine is alive at a time.
local: setup servers
	$(BIN)/pytest tests/local -m "not gpu" --durations=30

# Servers that tests talk to, each apart, since they want other packages than .venv has: a LiteLLM proxy, S3. The locks:
#   echo 'litellm[proxy]==1.108.7' | uv pip compile - --python-version 3.11 --no-annotate --no-header
#   printf 'moto[s3]>=5.2\nflask>=3\nflask-cors>=6\n' | uv pip compile - --python-version 3.11 --no-annotate --no-header
SERVERS := .venv-litellm/.synuc-setup .venv-s3/.synuc-setup

servers: $(SERVERS)

.venv-%/.synuc-setup: requirements/%.lock | $(STAMP)
	test -x $(@D)/bin/python || $(BIN)/uv venv --quiet --python $(BIN)/python $(@D)
	$(BIN)/uv pip sync --quiet --python $(@D)/bin/python $<
	touch $@

# Hours: models that really learn, and two of the paper's experiments at toy size.
test-slow: setup
	$(BIN)/pytest tests/slow -s

bench-train: setup
	$(BIN)/python -m tests.bench_train

bench-serve: setup
	$(BIN)/python -m tests.bench_serve

bench-review: setup
	$(BIN)/python -m tests.bench_review

# Twenty runs of each kind of kill: more than an hour.
chaos: setup
	$(BIN)/python -m tests.chaos.runs

bench-synthesis: setup
	$(BIN)/python -m tests.bench_synthesis

# Some two hours on two cores, on a machine that does nothing else. One alone: python -m tests.bench.wall
bench-scale: setup
	$(BIN)/python -m tests.bench

# Resolves pyproject.toml into the lock; needs torch's CPU wheels within uv's reach (UV_FIND_LINKS or UV_INDEX).
lock:
	$(BIN)/uv pip compile pyproject.toml --extra cpu --extra local --extra train --extra eval --extra dense --extra review --extra hub --extra dev \
	    --override requirements/overrides.txt --python-version 3.11 --no-annotate --no-header -q -o requirements/cpu.lock

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
