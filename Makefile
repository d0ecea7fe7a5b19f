# The paper from its sources. `make help` lists the targets.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:
MAKEFLAGS += -j2

SCENARIO ?= paper
PYTHON ?= python3
export SCENARIO
export JUPYTER_PREFER_ENV_PATH := 1
export PYTHONDONTWRITEBYTECODE :=
export SOURCE_DATE_EPOCH := 1785110400

# The stamp carries the checksum of the lock: the environment is remade when the lock changes, and only then.
ENV := .venv/.ready-$(firstword $(shell cksum < requirements.lock))
BIN := .venv/bin
ENGINE := .engine/.ready-$(firstword $(shell cat engine/requirements.lock engine/install.sh | cksum))
BUILD := build/$(SCENARIO)
HTML := book/_build/$(SCENARIO)/html/index.html
PDF := book/_build/$(SCENARIO)/$(SCENARIO).pdf
SCENARIO_FILE := data/scenarios/$(SCENARIO).yaml

ifeq ($(wildcard $(SCENARIO_FILE)),)
$(error SCENARIO: found $(SCENARIO), expected one of: $(patsubst data/scenarios/%.yaml,%,$(wildcard data/scenarios/*.yaml)))
endif

NOTEBOOKS := $(sort $(wildcard notebooks/[0-9]*.ipynb))
STEMS := $(NOTEBOOKS:notebooks/%.ipynb=%)
PACKAGE := $(shell find kvpaper -name '*.py' -o -name '*.yaml' -o -name '*.toml')
DATA := $(shell find data -type f -not -path 'data/results/*') $(wildcard data/results/public/*)
BOOK := $(shell find book -type f -not -path 'book/_build/*' -not -name '*.pyc')

.PHONY: help
help: ## Show this list
	@echo "make TARGET [SCENARIO=name]    (a name in data/scenarios, default: paper)"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1@\2/p' Makefile | awk -F@ '{printf "%-18s %s\n", $$1, $$2}'

.PHONY: paper
paper: $(HTML) ## Set up, run the notebooks, draw the figures, build the book
	@echo "The paper is at $(HTML)"

.PHONY: test
test: $(ENV) ## Run all tests: package, documentation, notebooks
	$(BIN)/python -m pytest

.PHONY: notebooks
notebooks: $(STEMS:%=$(BUILD)/notebooks/%.ipynb) ## Run the notebooks whose inputs changed

.PHONY: figures
figures: notebooks ## Draw the figures: each notebook draws its own
	@echo "The figures are in figures/$(SCENARIO)"

.PHONY: book
book: paper ## Build the book from the executed notebooks

.PHONY: pdf
pdf: $(PDF) ## Print the book into one PDF, with Chromium or Chrome
	@echo "The PDF is at $(PDF)"

.PHONY: drift
drift: notebooks ## Show the paper's numbers that moved since the last release, and why
	@$(BIN)/python book/drift.py

.PHONY: lab
lab: $(ENV) ## Open JupyterLab on the sources
	$(BIN)/jupyter lab --notebook-dir=notebooks

.PHONY: traces
traces: $(ENV) ## Fetch the public traces from their publishers, by checksum
	$(BIN)/python -m kvpaper.traces.fetch

.PHONY: lint
lint: $(ENV) ## Check style, and that notebooks are committed without outputs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python notebooks/execute.py --check-stripped

.PHONY: lock
lock: $(ENV) ## Resolve pyproject.toml anew into requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --extra paper --output-file requirements.lock pyproject.toml

.PHONY: schema
schema: $(ENV) ## Write the JSON Schemas of scenarios and records from the value objects
	$(BIN)/kvpaper schema > data/scenarios/schema.tmp && mv data/scenarios/schema.tmp data/scenarios/schema.json
	$(BIN)/kvpaper measure schema > data/measured/schema.tmp && mv data/measured/schema.tmp data/measured/schema.json

.PHONY: env
env: $(ENV) ## Make the environment .venv from the lock

.PHONY: engine-env
engine-env: $(ENGINE) ## Make the environment .engine: vLLM for CPUs, LMCache, NIXL (3 GB)

.PHONY: measure
measure: $(ENV) ## Time the tiers of this machine: memory, disk, LMCache if .engine is there (1 to 3 minutes)
	$(BIN)/kvpaper measure tiers $(addprefix --python ,$(wildcard .engine/bin/python))

.PHONY: canary
canary: $(ENV) $(ENGINE) ## The paper's 2x2 and disaggregation on real engines of this machine (45 minutes to two hours)
	@echo "This starts about 20 engines one after the other: 45 minutes to two hours on two cores, 16 GiB of memory,"
	@echo "5 GB of disk. Ctrl-C loses the cell under way; the next call goes on after it. Records: data/measured"
	$(BIN)/kvpaper measure disagg --connector nixl
	$(BIN)/kvpaper measure disagg --connector lmcache --loops shared:0.4:1
	$(BIN)/kvpaper measure disagg --connector none --threads 2
	$(BIN)/kvpaper measure factorial --resume --model small-moe
	$(BIN)/kvpaper measure factorial --resume --model canary
	$(BIN)/kvpaper measure check

.PHONY: engine-lock
engine-lock: $(ENV) ## Resolve engine/requirements.in anew into its lock
	$(BIN)/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --excludes engine/excluded.txt --generate-hashes --no-emit-index-url --no-header --no-annotate \
	  --output-file engine/requirements.lock engine/requirements.in

.PHONY: clean
clean: ## Remove what was built; the environment stays
	rm -rf build book/_build .pytest_cache .ruff_cache

$(ENV): | requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON): found $$($(PYTHON) -V 2>&1), expected Python 3.11 or later (make PYTHON=python3.11 ...)" >&2; exit 2; }
	@echo "Making the environment .venv from requirements.lock"
	@rm -f .venv/.ready-*
	@$(PYTHON) -m venv --clear .venv
	@sed -n '/^uv==/,/# via/p' requirements.lock > .venv/uv.lock
	@if $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.lock; then \
	  $(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock; \
	else \
	  $(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock; \
	fi
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . \
	  || $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(ENGINE): | $(ENV)
	@engine/install.sh
	@touch $@

# What each notebook reads, one file a notebook, rewritten only where it changed.
$(BUILD)/inputs.done: $(SCENARIO_FILE) $(NOTEBOOKS) $(DATA) notebooks/execute.py | $(ENV)
	@$(BIN)/python notebooks/execute.py --inputs $(SCENARIO)
	@touch $@

$(BUILD)/inputs/%.json: $(BUILD)/inputs.done ;

# Without the widest vector units, whose last bit differs, the bytes are the same on every processor.
$(BUILD)/notebooks/%.ipynb: export NPY_DISABLE_CPU_FEATURES := X86_V4 AVX512_ICL AVX512_SPR
$(BUILD)/notebooks/%.ipynb: notebooks/%.ipynb $(BUILD)/inputs/%.json $(PACKAGE) $(ENV)
	@$(BIN)/python notebooks/execute.py $(SCENARIO) $*

$(HTML): $(STEMS:%=$(BUILD)/notebooks/%.ipynb) $(BOOK) $(PACKAGE) $(DATA)
	@$(BIN)/python book/assemble.py $(SCENARIO)

$(PDF): $(HTML)
	@$(BIN)/python book/pdf.py $(SCENARIO)

-include $(BUILD)/inputs.d
