# Two commands do everything on a machine with nothing but Python, pip and make:
#   make demo    watch a camera go bad and the bundled ViT being adapted, without PyTorch
#   make test    lint, layers, types and tests
# `make pages` writes every table and chart from results/, `make docs` builds the site into site/, `make mutate` tests the tests.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint types unit ray matrix wheel mutate pages docs clean

demo: $(VENV)-demo/.ready
	@$(VENV)-demo/bin/fozo demo

# Types are checked beside the tests. Ray's clusters run alone, after the rest: they break where processors are busy.
test: lint
	@$(MAKE) --no-print-directory -j2 types unit
	@$(MAKE) --no-print-directory ray

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.ready
	$(BIN)/mypy

# On all processors; a worker that is done takes over tests of the others.
unit: $(VENV)/.ready
	$(BIN)/pytest --numprocesses auto --dist worksteal -m "not ray"

# Only the files that have such tests are collected.
ray: $(VENV)/.ready
	$(BIN)/pytest --numprocesses 0 --timeout 1500 -m ray $(shell grep -rlE 'mark\.ray' tests --include='*.py')

# The tests that need neither PyTorch nor fixtures, on the other versions of Python: one after the other, a minute each.
# With pyenv: PYENV_VERSION=3.10.13:3.12.1:3.13.0 make matrix
PYTHONS ?= python3.10 python3.12 python3.13
matrix: $(PYTHONS:%=$(VENV)-matrix/%/.ready)
	@for python in $(PYTHONS); do \
	  $(VENV)-matrix/$$python/bin/python --version && \
	  OMP_NUM_THREADS=1 $(VENV)-matrix/$$python/bin/python -m pytest --verbose --noconftest -p no:cacheprovider --timeout 120 \
	    $$($(PYTHON) -m tests.portable) || exit 1; \
	done

# The wheel in an empty environment of every Python, away from the repository, with the newest packages: what a release gives.
wheel: $(VENV)/.ready
	rm -rf dist && $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@for python in $(PYTHONS); do \
	  rm -rf $(VENV)-wheel && $$python -m venv $(VENV)-wheel && $(VENV)-wheel/bin/python -m pip install --quiet dist/*.whl && \
	  (cd "$$(mktemp -d)" && $(abspath $(VENV))-wheel/bin/python --version && $(abspath $(VENV))-wheel/bin/fozo demo --images 40) || exit 1; \
	done

# Change one operator or number after another, and list changes that no test notices: 20 minutes on two processors.
mutate: $(VENV)/.ready
	$(BIN)/python -m tests.mutate

# Tables and charts of README and docs, from results/ and the registry (a test fails where one is stale), and the notebook.
pages: $(VENV)/.ready
	$(BIN)/python -m benchmarks.tables
	$(BIN)/python docs/make_notebook.py

# Warnings are errors (mkdocs.yml), and nothing is fetched. The variable spares us an advertisement.
docs: $(VENV)-docs/.ready
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet

# The stamp is newer than what it was made from, so a changed pin reinstalls by itself.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing the pinned development environment (a few minutes the first time)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,transformers,timm,bench,serve,dev]'
	@# Only to compare with, so without what it asks for, which is of 2020.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps imagecorruptions robustbench
	@touch $@

# What an engineer at the edge installs: the base dependencies, a minute instead of several.
$(VENV)-demo/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-demo
	$(VENV)-demo/bin/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

# What builds the site reads the code and imports none of it.
$(VENV)-docs/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

# Without the pins: what a user of that version gets today.
$(VENV)-matrix/%/.ready: pyproject.toml
	$* -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable '.[serve]' pytest pytest-timeout hypothesis
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-demo $(VENV)-docs $(VENV)-matrix $(VENV)-wheel build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
