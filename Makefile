# Every target does its own set-up: a virtual environment in .venv with the versions of constraints.txt.
# It needs Python 3.11 or newer (choose another with `make test PYTHON=...`) and a package index.

RECENT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '$(RECENT)' 2>/dev/null && echo $$p && break; done)
VENV := .venv
PEER := .venv-peer
RUN := $(VENV)/bin/python
INSTALL := $(RUN) -m pip install -qq --disable-pip-version-check --no-input --constraint constraints.txt
# Two things at once on a busy machine: threads that spin while they wait would cost a factor of ten.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0 HF_HUB_OFFLINE=1

.PHONY: help demo test layouts lint bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.installed-demo  ## teach a real 135M chat model sums on two processes
	@HF_HUB_OFFLINE=1 $(RUN) -m examples.demo

test: $(VENV)/.installed-dev  ## run the tests; ARGS=... goes to pytest
	@echo "== tests: pytest $(ARGS)"
	@$(TEST_ENVIRONMENT) $(RUN) -m pytest $(ARGS)

layouts: $(VENV)/.installed-dev  ## prove that layouts give the same run, as a table
	@$(TEST_ENVIRONMENT) $(RUN) -m tests.layouts

lint: $(VENV)/.installed-dev  ## check format, style and types
	@echo "== format: ruff format --check"
	@$(RUN) -m ruff format --check .
	@echo "== style: ruff check"
	@$(RUN) -m ruff check .
	@echo "== types: mypy"
	@$(RUN) -m mypy

bench: $(VENV)/.installed-dev $(PEER)/.installed  ## speed: start-up, and SFT beside another library; ARGS=...
	@$(RUN) benchmarks/startup.py
	@$(RUN) benchmarks/sft.py --peer $(PEER)/bin/python $(ARGS)

clean:  ## remove all that the other targets made
	@echo "== removing the environment, caches and outputs"
	@rm -rf $(VENV) $(PEER) .demo out .pytest_cache .ruff_cache .mypy_cache .hypothesis build src/*.egg-info
	@find src tests examples -name __pycache__ -prune -exec rm -rf {} +

# Both environments are made by this rule.
$(VENV)/bin/python $(PEER)/bin/python:
	@test -n "$(PYTHON)" && $(PYTHON) -c '$(RECENT)' 2>/dev/null || \
		{ echo "There is no Python 3.11 or newer$(if $(PYTHON), at $(PYTHON)): install one, or name it with make PYTHON=..."; exit 1; }
	@echo "== environment: $(@:/bin/python=) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(@:/bin/python=) || \
		{ rm -rf $(@:/bin/python=); echo "$(PYTHON) cannot make a virtual environment (Debian: apt install python3-venv)"; exit 1; }

# torch goes first and alone, so that whichever build the index gives for its version is kept by what follows.
$(VENV)/.installed-torch: constraints.txt | $(VENV)/bin/python
	@echo "== installing torch"
	@$(INSTALL) torch
	@touch $@

$(VENV)/.installed-%: pyproject.toml constraints.txt $(VENV)/.installed-torch
	@echo "== installing this package with what $* needs"
	@$(INSTALL) --editable '.[$*]'
	@touch $@

$(PEER)/.installed: benchmarks/peer-requirements.txt | $(PEER)/bin/python
	@echo "== installing what is compared with"
	@$(PEER)/bin/python -m pip install -qq --disable-pip-version-check --no-input --requirement $<
	@touch $@
