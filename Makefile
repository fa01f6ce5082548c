# `make demo` and `make test` work on a fresh machine: Python 3.10+ is all that they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO := fixtures/demo

# `make fuzz` draws as many loops in each of as many processes.
FUZZ_JOBS ?= 2
FUZZ_EXAMPLES ?= 10000
FUZZ_SECONDS ?= 300

# What builds the documentation is installed beside the tests.
DOCS_INSTALLED := $(VENV)/.docs-installed

# The frameworks that people train with are many and large: they have an environment of their own.
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_INSTALLED := $(FRAMEWORKS)/.installed
# timm needs torchvision, which fails to load where PyTorch was built for CPUs and it was not. Whoever finds it installed
# loads it (Transformers does), so that timm has an environment of its own.
TIMM := .venv-timm
TIMM_INSTALLED := $(TIMM)/.installed
BROWSER_INSTALLED := $(VENV)/.browser-installed

# `make mutants` asks these modules, of each as many mutants.
MODULES ?= ledger/unit_counts diagnosis/clearing
MUTANTS ?= 8

MATRIX_INSTALLED := $(VENV)/.matrix-installed

.PHONY: demo docs test test-slow test-thorough test-page explore fuzz fuzz-inputs gpu test-frameworks frameworks-table matrix mutants

# Runs the second argument and fails unless its exit status is the first.
define expect
	@printf '\n$$ %s\n' '$(2)'; $(BIN)/$(2); status=$$?; \
	test $$status -eq $(1) || { echo "expected exit status $(1), got $$status" >&2; exit 1; }
endef

demo: $(INSTALLED)
	$(call expect,1,gradcheck-accum lint $(DEMO)/train_faulty.py)
	$(call expect,1,gradcheck-accum verify $(DEMO)/train_faulty.py)
	@printf '\n$$ diff -u $(DEMO)/train_faulty.py $(DEMO)/train_repaired.py\n'
	@diff -u $(DEMO)/train_faulty.py $(DEMO)/train_repaired.py; test $$? -eq 1
	$(call expect,0,gradcheck-accum lint $(DEMO)/train_repaired.py)
	$(call expect,0,gradcheck-accum verify $(DEMO)/train_repaired.py)

# The documentation, into site/; a link that leads nowhere is an error.
docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

# What takes seconds by nature: several processes, whole scripts, drawn loops. A file's tests share what is
# dear to set up.
test-slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m "slow and not thorough"

# Further cases of what the others show, for whoever makes a release: CI has to end on slow machines too.
test-thorough: $(INSTALLED) $(FRAMEWORKS_INSTALLED) $(TIMM_INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m thorough
	OMP_NUM_THREADS=1 $(FRAMEWORKS)/bin/pytest -n 2 -m thorough tests/frameworks
	OMP_NUM_THREADS=1 $(TIMM)/bin/pytest -n 2 -m thorough tests/frameworks -k timm

# The page of verify and compare in the system's own Chromium (CHROMIUM=path where it has another name); skipped where
# there is none.
test-page: $(BROWSER_INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m browser tests/report

# Draws anew in every test that draws, where test and test-slow draw the same each time. What it finds is pinned.
explore: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m "slow or not slow" --hypothesis-profile explore

fuzz: $(INSTALLED)
	seq $(FUZZ_JOBS) | xargs -P $(FUZZ_JOBS) -I{} env OMP_NUM_THREADS=1 $(BIN)/gradcheck-accum fuzz --examples $(FUZZ_EXAMPLES) --seed {}

# Coverage-guided, each target for as many seconds. atheris needs Python 3.11 to 3.13.
fuzz-inputs: $(INSTALLED)
	$(BIN)/pip install --quiet -c constraints.txt atheris
	for target in lint notebook settings; do \
		nice -n 19 $(BIN)/python benchmarks/fuzz_inputs.py $$target --seconds $(FUZZ_SECONDS) || exit 1; \
	done

# Whether the tests notice a change of the engines: docs/fuzzing.md has the table.
mutants: $(INSTALLED)
	OMP_NUM_THREADS=1 nice -n 19 $(BIN)/python benchmarks/mutants.py $(MODULES) --sample $(MUTANTS)

# On a machine with a GPU, in an environment of your own whose PyTorch was built for it: make gpu PYTHON=python
gpu:
	$(PYTHON) -m pytest -m gpu tests/gpu
	$(PYTHON) benchmarks/gpu.py

test-frameworks: $(FRAMEWORKS_INSTALLED) $(TIMM_INSTALLED)
	OMP_NUM_THREADS=1 $(FRAMEWORKS)/bin/pytest -n 2 tests/frameworks
	OMP_NUM_THREADS=1 $(TIMM)/bin/pytest -n 2 tests/frameworks -k timm

frameworks-table: $(FRAMEWORKS_INSTALLED) $(TIMM_INSTALLED)
	OMP_NUM_THREADS=1 $(FRAMEWORKS)/bin/python benchmarks/frameworks_table.py --timm $(TIMM)/bin/python

# A selection of the suite on other versions of Python, PyTorch and what else is needed, of which docs/versions.md has the
# table; some of its lines with ROWS="lint-3.12 verify-3.13". Builds an environment for each, and removes it.
matrix: $(MATRIX_INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/versions_table.py $(ROWS)

# PyTorch first and by itself: where several builds of it can be had, the one that constraints.txt names is taken.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e ".[test]"
	touch $@

$(BROWSER_INSTALLED): $(INSTALLED)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[test,browser]"
	touch $@

$(MATRIX_INSTALLED): $(INSTALLED)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[test,matrix]"
	touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@

$(FRAMEWORKS_INSTALLED): pyproject.toml constraints.txt constraints-frameworks.txt
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/pip install --quiet -c constraints.txt torch
	$(FRAMEWORKS)/bin/pip install --quiet -c constraints.txt -c constraints-frameworks.txt -e ".[test,frameworks]"
	touch $@

$(TIMM_INSTALLED): pyproject.toml constraints.txt constraints-frameworks.txt
	test -x $(TIMM)/bin/python || $(PYTHON) -m venv $(TIMM)
	$(TIMM)/bin/pip install --quiet -c constraints.txt torch
	$(TIMM)/bin/pip install --quiet -c constraints.txt -c constraints-frameworks.txt -e ".[test,timm]"
	touch $@
