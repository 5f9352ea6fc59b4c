# make quickstart   create a virtual environment, install cse, build a TF-IDF index, train on the sample corpus, search
#                   the corpus before and after training, and write an HTML report of the run
# make test         run the tests in the same environment, in JOBS processes (default 2), without the slow ones
# make test-slow    run the slow tests, make test-faults, and tests/helpers/broken.py, which breaks the product in 35 places
# make test-all     make test, and make test-slow
# make test-faults  kill commands while they write, damage the files that they read, and give odd values to their
#                   options: a sample that is the same each time; with WHOLE=1, everything (hours)
# make test-tools   install the programs of docs/with.md in target/tools, an environment of their own, and run its examples
# make lint         check the formatting, run linters and type checkers, and build the documentation
# make docs         build the documentation as a site in target/site
#
# make package      build the wheel and the source distribution in target/dist, check them, and try the wheel
#
# PYTHON=python3.12 make ...         use this Python interpreter
# make quickstart DEV=stsb.dev.tsv   also evaluate Spearman's correlation on this TSV file, whose columns are score,
#                                    sentence1 and sentence2
# make quickstart QUERY="a question" search for this query instead of the built-in one

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
RUST := Cargo.toml Cargo.lock $(wildcard rust/src/*.rs rust/src/*/*.rs)
STEPS ?= 60
QUERY ?= an illness that doctors could not cure
LAST := $$(ls -td quickstart/runs/*/ | head -n 1)
JOBS ?= 2

.PHONY: quickstart test coverage test-slow test-all test-faults test-tools lint package bench-core bench-growth bench-train bench-search reproduce-smoke docs \
	structure pictures clean

# If pyproject.toml or constraints.txt changes, the packages are reinstalled. If a Rust source changes, the extension
# module is rebuilt.
$(VENV)/packages: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt maturin
	@echo "installing PyTorch and other packages: this takes a few minutes the first time ..."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint,docs]'
	touch $@

$(READY): $(VENV)/packages $(RUST)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --skip-install --quiet
	touch $@

quickstart: $(READY)
	@echo; echo "== cse build-tfidf: build the TF-IDF index of the sample"
	$(BIN)/cse build-tfidf python/cse/resources/sample.txt -o quickstart/tfidf
	@echo; echo "== cse train: $(STEPS) steps of Focal-InfoNCE with UNA's hard negatives"
	$(BIN)/cse train --loss focal --una --model minilm --max-steps $(STEPS) \
		--tfidf quickstart/tfidf -o quickstart/runs $(if $(DEV),--dev $(DEV))
	@echo; echo "== cse search: search 2,000 of the sentences for one query, before and after training"
	head -n 2000 python/cse/resources/sample.txt > quickstart/some.txt
	$(BIN)/cse search minilm quickstart/some.txt -o quickstart/before --query "$(QUERY)" --top 5
	$(BIN)/cse search $(LAST) quickstart/some.txt -o quickstart/after --rebuild --query "$(QUERY)" --top 5
	@echo; echo "== cse report: an HTML report of the run"
	$(BIN)/cse report "$(LAST)"

# Each test process uses one thread: on two cores, two processes with two threads each are slower.
test: $(READY)
	cargo test --quiet
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# The lines of Python that make test runs, by file, and their share. Processes that tests start are not counted.
coverage: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pytest-cov
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --cov=cse --cov=cse_papers --cov-report=term

test-slow: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "slow and not tools"
	$(MAKE) test-faults
	OMP_NUM_THREADS=1 $(BIN)/python tests/helpers/broken.py --jobs $(JOBS)

test-all: test test-slow

# Kills every command that writes at its calls that change files, damages every kind of file that cse reads, gives odd
# values to every option.
SAMPLE_crash_points := --share 2
SAMPLE_mutations := --sample 2
SAMPLE_odd_values := --sample 60
WHOLE_crash_points := --all
test-faults: $(READY)
	$(MAKE) -j $(JOBS) --output-sync faults-crash_points faults-mutations faults-odd_values

faults-%: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/helpers/$*.py $(if $(WHOLE),$(WHOLE_$*),$(SAMPLE_$*))

# These packages have their own environment, because some need other versions than constraints.txt names (fastembed: an
# older huggingface-hub; langchain-core: a newer certifi). The versions of KEPT are kept.
# The test files with the marker tools; others import packages that the extra cse[tools] lacks.
TOOL_TESTS := tests/test_tools.py
KEPT := torch|transformers|tokenizers|sentence-transformers|numpy|onnxruntime|scikit-learn
target/tools/packages: pyproject.toml constraints.txt $(READY)
	$(PYTHON) -m venv target/tools
	grep -E '^($(KEPT))==' constraints.txt > target/tools/constraints.txt
	target/tools/bin/python -m pip install --quiet --disable-pip-version-check -c target/tools/constraints.txt \
		pytest -e '.[tools]'
	touch $@

test-tools: target/tools/packages
	OMP_NUM_THREADS=1 target/tools/bin/python -m pytest -m tools $(TOOL_TESTS)

lint: $(READY)
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	cargo clippy --quiet --all-targets --features python -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest cse._core
	$(BIN)/lint-imports
	$(BIN)/python docs/structure.py --check
	$(BIN)/python docs/build.py

# Builds the documentation as a site in target/site, and checks its links.
docs: $(READY)
	$(BIN)/python docs/build.py

# Draws docs/structure.svg from the imports of the package.
structure: $(READY)
	$(BIN)/python docs/structure.py

# Draws docs/pictures: an example of UNA and the focal logits. After make quickstart, python docs/pictures.py
# --quickstart quickstart draws the terminal and the page of the report.
pictures: $(READY)
	$(BIN)/python docs/pictures.py

# Measures the speed of the Rust core; CORPUS is a plain text file. Prints the first table of docs/benchmarks.md.
bench-core: $(READY)
	$(BIN)/python benches/core.py $(CORPUS)

# Measures time and memory of build-tfidf and augment for 10,000 to 10 million generated sentences. Writes 1.2 GB of
# temporary files.
bench-growth: $(READY)
	$(BIN)/python benches/growth.py --augment

# The wheel is built for Linux with glibc 2.28 or later, which includes the current long-term releases. maturin links with
# zig, which has the symbols of older glibc versions, so that no container is needed.
package:
	$(PYTHON) -m venv target/package
	target/package/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		maturin ziglang auditwheel twine
	rm -rf target/dist
	PATH="$(CURDIR)/target/package/bin:$$PATH" target/package/bin/maturin build --release --locked --zig \
		--compatibility manylinux_2_28 --sdist --out target/dist
	target/package/bin/auditwheel show target/dist/*.whl
	target/package/bin/twine check --strict target/dist/*
	rm -rf target/installed && $(PYTHON) -m venv target/installed
	target/installed/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		"$$(ls target/dist/*.whl)[offline]"
	cd target/installed && head -n 500 ../../python/cse/resources/sample.txt > corpus.txt && bin/cse build-tfidf corpus.txt \
		&& bin/cse augment corpus.txt -o negatives.txt \
		&& bin/cse train corpus.txt --loss focal --una --model minilm --max-steps 2 \
		&& bin/cse encode minilm corpus.txt -o vectors.npy

# Runs every cell of every published table for two steps with a tiny model (cse reproduce --smoke). Takes a quarter of
# an hour on two cores.
reproduce-smoke: $(READY)
	set -e; for table in $$($(BIN)/python -m cse reproduce --names); do \
	  $(BIN)/python -m cse reproduce $$table --smoke -o target/reproduce/$$table > target/reproduce.log 2>&1 \
	    || { cat target/reproduce.log; exit 1; }; \
	  echo "$$table runs"; \
	done

# Compares the training speed of cse, of sentence-transformers' trainer and of a plain loop, and prints the parts of a
# step that take the most time. Takes ten minutes on two cores, or twenty if the processor has bfloat16 instructions.
bench-train: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benches/train.py --breakdown

# Measures the time and memory of exact search in a million vectors, compared with NumPy, and the time of a search for
# near-duplicates. Takes a quarter of an hour on two cores.
bench-search: $(READY)
	$(BIN)/python benches/search.py

clean:
	rm -rf $(VENV) target quickstart
