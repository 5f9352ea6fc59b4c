# make quickstart   a virtual environment, everything installed, and the main job on the shipped sample, offline
# make test         the same environment, and every test
# make lint         formatters, linters, type checkers
#
# PYTHON=python3.12 make ...         another interpreter
# make quickstart DEV=stsb.dev.tsv   also watch Spearman on a file of score, sentence1, sentence2

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
RUST := Cargo.toml Cargo.lock $(wildcard rust/src/*.rs rust/src/*/*.rs)
STEPS ?= 40

.PHONY: quickstart test lint bench-core bench-growth bench-adapt clean

# The virtual environment is made again when what is installed changes; the extension when its source does.
$(VENV)/packages: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt maturin
	@echo "installing PyTorch and the rest: a few minutes the first time ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	touch $@

$(READY): $(VENV)/packages $(RUST)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --skip-install --quiet
	touch $@

quickstart: $(READY)
	@echo; echo "== cse build-tfidf: count the sample"
	$(BIN)/cse build-tfidf python/cse/resources/sample.txt -o quickstart/tfidf
	@echo; echo "== cse train: $(STEPS) steps of Focal-InfoNCE with UNA's hard negatives"
	$(BIN)/cse train --loss focal --una --model minilm --max-steps $(STEPS) \
		--tfidf quickstart/tfidf -o quickstart/runs $(if $(DEV),--dev $(DEV))

test: $(READY)
	cargo test --quiet
	$(BIN)/python -m pytest

lint: $(READY)
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	cargo clippy --quiet --all-targets --features python -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest cse._core
	$(BIN)/lint-imports

# What the core takes; CORPUS is a plain text file. Prints the README's first table.
bench-core: $(READY)
	$(BIN)/python benches/core.py $(CORPUS)

# What a build takes from 10,000 made-up sentences to ten million: 1.2 GB of temporary text.
bench-growth: $(READY)
	$(BIN)/python benches/growth.py --augment

# What training changes, with intervals; DATA holds the STS files. Over an hour on two cores, resumed run by run.
bench-adapt: $(READY)
	$(BIN)/python benches/adapt.py accept --data $(DATA)

clean:
	rm -rf $(VENV) target quickstart
