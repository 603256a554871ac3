# Each target does its own set-up; run any of them first, and as often as you like.
VENV ?= .venv
EXTRAS ?= test,lint,docs
PYTEST_ARGS ?=
# One worker gets all that starts servers, the other the rest. PYTEST_WORKERS= for one process, as --pdb needs.
PYTEST_WORKERS ?= -n 2 --no-loadscope-reorder
SERVE_ARGS ?=
PYTHON_TOOLS := sglang_dspark tests scripts docs
export VENV EXTRAS

.PHONY: help setup serve test test-triton kernels lint docs docs-links clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## the CPU engine and this checkout into .venv (VENV=... for another place)
	@scripts/cpu_engine.sh

serve: setup ## start SGLang on this machine's CPU with a small DSpark pair, and talk to it (SERVE_ARGS="--port 30000 --keep")
	@$(VENV)/bin/sglang-dspark demo $(SERVE_ARGS)

test: setup ## all tests, the ones that start the real server too (PYTEST_ARGS="-m 'not e2e' -x")
	@scripts/compiler.sh
	@$(VENV)/bin/python -m pytest $(PYTEST_WORKERS) $(PYTEST_ARGS)

# Beside the environment, not in it: `make test` and `make serve` go on without Triton, as most people have them.
test-triton: setup ## the kernels once more, in Triton's interpreter (700 MB more)
	@cmp -s requirements/triton.txt $(VENV)/triton/installed.txt || { echo "Installing Triton into $(VENV)/triton" && \
	  $(VENV)/bin/python -m pip install -q --disable-pip-version-check --upgrade --no-deps --target $(VENV)/triton -r requirements/triton.txt && \
	  cp requirements/triton.txt $(VENV)/triton/installed.txt; }
	@PYTHONPATH=$(VENV)/triton DSPARK_REQUIRE_EXECUTORS=context_kv/triton/interpreter,qk_norm_rope/triton/interpreter \
	  $(VENV)/bin/python -m pytest $(PYTEST_WORKERS) tests/parity tests/unit/ops $(PYTEST_ARGS)

kernels: ## compile the GPU kernels that travel with the wheel, for every chip whose compiler is here (ARCHS="gfx942 gfx950")
	@python3 -m sglang_dspark.ops.native $(ARCHS)

lint: setup ## ruff and mypy
	@$(VENV)/bin/ruff check $(PYTHON_TOOLS)
	@$(VENV)/bin/ruff format --check $(PYTHON_TOOLS)
	@$(VENV)/bin/mypy

# -W: a warning, such as a link to a page or a heading that is not there, fails the build.
docs: setup ## the documentation as a site, build/site/index.html, and its generated tables
	@$(VENV)/bin/python scripts/support_table.py
	@$(VENV)/bin/python -m sphinx -q -W --keep-going -b html -c docs . build/site
	@echo "The site is build/site/index.html."

docs-links: setup ## every link of the documentation that leaves it, fetched; needs a network, so CI leaves it out
	@$(VENV)/bin/python -m sphinx -q -b linkcheck -c docs . build/links && cat build/links/output.txt

clean: ## remove .venv and every build output and cache
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find sglang_dspark tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
