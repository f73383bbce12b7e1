# The environment is made once in .venv, and again when pyproject.toml, constraints.txt or the choice of torch changes.
#   PYTHON       the interpreter to make it with; by default the first one found that is new enough
#   TORCH        which torch to install, a requirement or a wheel file
#   TORCH_INDEX  where to find it, the URL of a package index with other builds of torch
# The choice of torch is remembered: TORCH_INDEX=... make bench, and then plain make test, use the same build.
-include .venv/choice.mk
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && exit; done; echo python3)
TORCH ?= torch==2.13.0
TORCH_INDEX ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := .venv/installed-$(shell echo '$(TORCH) $(TORCH_INDEX)' | cksum | cut -d ' ' -f 1)
BENCH := $(BIN)/scalable-bo bench thompson

# BoTorch's own tests are the user's, and so is the mode:
#   BOTORCH_TESTS  the folder test/ of a checkout of BoTorch's repository
#   BOTORCH_MODE   exact (PathwiseGP as it comes), paths (with the posterior of 512 paths) or botorch (BoTorch's own model)
BOTORCH_TESTS ?=
BOTORCH_MODE ?= exact

#   LOWEST       the torch that dist-lowest takes, a requirement or a wheel file
LOWEST ?= $(TORCH)

#   WORKERS      how many processes run the tests or the examples, each with one thread
WORKERS ?= 2

# Tests start hundreds of processes, which would each compile the packages again
unexport PYTHONDONTWRITEBYTECODE

PICTURES := $(patsubst examples/%.py,results/%.png,$(wildcard examples/*.py))

.PHONY: help venv bench smoke test test-portable test-slow test-gpu test-botorch lint types examples gallery docs dist dist-lowest clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

venv: $(INSTALLED) ## create .venv with the project and all it needs

bench: $(INSTALLED) ## run the main job, a small Thompson benchmark: a table, and a plot in results/
	$(BENCH) --preset laptop --seeds 0 --out results

smoke: $(INSTALLED) ## run the same benchmark, one round of it
	$(BENCH) --preset laptop --solver cg --seeds 0 --rounds 1 --out results/smoke

test: $(INSTALLED) ## run the tests, WORKERS files of them at a time
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# An older processor, and a machine without a C compiler: what is computed is rounded differently
PORTABLE := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 SCALABLE_BO_COMPILE=never

test-portable: $(INSTALLED) ## run the tests of the numerics again, as an older processor without a compiler computes
	$(PORTABLE) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile tests/surrogates/operators tests/surrogates/systems tests/surrogates/solvers

test-slow: $(INSTALLED) ## run the tests that take long
	$(BIN)/python -m pytest -m slow

test-gpu: $(INSTALLED) ## run the tests that need a CUDA device, on it
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { \
		echo "There is no CUDA device that this build of torch can use. Choose a build: make test-gpu TORCH_INDEX=..."; exit 1; }
	$(BIN)/python -m pytest -m gpu

test-botorch: $(INSTALLED) ## run BoTorch's own tests on PathwiseGP: BOTORCH_TESTS=<test/ of its repository> [BOTORCH_MODE=paths]
	@$(BIN)/python -m tests.botorch_suite.runner '$(BOTORCH_TESTS)' --mode '$(BOTORCH_MODE)' -q --disable-warnings

lint: $(INSTALLED) ## check style and formatting, and the words of the pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q tests/test_prose.py

types: $(INSTALLED) ## check the type annotations
	$(BIN)/mypy

examples: $(INSTALLED) ## run every script in examples/, the large ones in small, WORKERS at a time
	@rm -f $(PICTURES)
	@$(MAKE) --no-print-directory -j $(WORKERS) $(PICTURES)

gallery: examples ## draw the stored pictures of the site again: of the examples, and of the pages
	cp $(PICTURES) docs/gallery
	@for script in docs/pictures/*.py; do PYTHONPATH=. MPLBACKEND=Agg $(BIN)/python $$script $${script%.py}.png || exit; done

docs: .venv/extra-docs ## build the site into build/site from the stored pictures: every page, the reference, the gallery; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: .venv/extra-dist ## build the sdist and the wheel into dist/, check them, and try the wheel in an empty environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m pytest -q -m slow tests/test_dist.py

dist-lowest: dist ## try the wheel with the lowest versions that pyproject.toml allows: minutes, mostly downloads
	LOWEST='$(LOWEST)' $(BIN)/python -m pytest -q -m slow tests/test_dist.py -k lowest

clean: ## remove .venv, caches and build products; results/ stays
	rm -rf .venv build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes in first and alone, from its own index if one is given; the build that came constrains what follows.
# Another choice of torch starts afresh, because pip takes another build of the same version for the one asked for.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found. Choose an interpreter: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "scalable_bo needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Choose another: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot create virtual environments. Install its venv module (python3-venv on Debian and Ubuntu) or choose another: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(if $(wildcard $(INSTALLED)),,--clear) .venv
	$(PIP) install --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	@sed '/^torch==/d' constraints.txt > .venv/constraints.txt
	@$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >> .venv/constraints.txt
	$(PIP) install -c .venv/constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -e '.[all,test]'
	@printf 'TORCH ?= %s\nTORCH_INDEX ?= %s\n' '$(TORCH)' '$(TORCH_INDEX)' > .venv/choice.mk
	@touch $@

# An example draws its picture
results/%.png: examples/%.py | $(INSTALLED)
	OMP_NUM_THREADS=1 EXAMPLES=small MPLBACKEND=Agg $(BIN)/python $<

# Further packages to build the site or a release
.venv/extra-%: $(INSTALLED)
	$(PIP) install -q -c .venv/constraints.txt -e '.[$*]'
	@touch $@
