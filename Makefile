# `make demo` shows the library at work, `make test` checks it, `make docs` builds the site. All make .venv first if needed.

PYTHON ?= python3
VENV   := .venv
STAMP  := $(VENV)/.installed
BUILT  := pyproject.toml constraints.txt $(wildcard CMakeLists.txt gatewise/runtime/*.c gatewise/runtime/kernels/*.[ch])
# The installed package knows its modules by file: one that has become a folder since is not found.
BUILT  += $(wildcard gatewise/*/__init__.py gatewise/*/*/__init__.py gatewise/*/*/*/__init__.py)
BIN    := $(VENV)/bin
JOBS   ?= 2
ARGS   ?=
# The GPU kernels, interpreted where there is no GPU.
KERNELS := tests/nn/test_triton_scan.py tests/compact/test_triton_compact.py \
           tests/sparsify/test_triton_lasso.py tests/sparsify/test_triton_posterior.py

.PHONY: help demo test docs lint types unit clean

help:
	@echo "make demo    train, sparsify, compress and draw a small language model (ARGS='--method bayes')"
	@echo "make test    style, types and all tests (JOBS=2 of them at a time)"
	@echo "make docs    the documentation site, into site/"
	@echo "make clean   remove .venv and caches"

demo: $(STAMP)
	$(BIN)/gatewise demo $(ARGS)

test: lint types unit

docs: $(STAMP)
	$(BIN)/python tests/docs/generate.py
	$(BIN)/zensical build --clean --strict

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# One thread a worker: more of them would wait for one another, and a seventh of the time with them.
unit: export OMP_NUM_THREADS = 1
unit: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -n $(JOBS) $(KERNELS)

$(STAMP): $(BUILT)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "gatewise needs Python 3.11 or newer; set one with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build site .mypy_cache .pytest_cache .ruff_cache .hypothesis
