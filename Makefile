# Everything runs in .venv, which the first target that needs it sets up: only Python 3.11 and pip are
# asked for. `make test ARGS="-k lifecycle"` and `make demo ARGS="--requests 50"` hand arguments on.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.palimpsest-ready
CODE := impl/palimpsest $(wildcard model_check)

.PHONY: demo test check mutants explore soak verify lint format docs conformance clean

demo: $(READY)
	$(BIN)/palimpsest demo $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

# The specification: every quick model, reach model and mutant, with the verdict expected of each.
check: $(READY)
	$(BIN)/palimpsest check --set quick $(ARGS)

# Mutants of the specification: what changed, and a random tenth of the others besides.
mutants: $(READY)
	$(BIN)/palimpsest mutants --sample 0.1 --seed $$(date +%j) $(ARGS)

# The real threads in every order with at most one preemption.
explore: $(READY)
	$(BIN)/palimpsest explore $(ARGS)

# Random programs with faults for ten minutes: `make soak ARGS="--seconds 60"` for one.
soak: $(READY)
	$(BIN)/palimpsest soak $(ARGS)

# Every kind of evidence, and one table; `make verify ARGS=--quick` takes a sample of each kind.
verify: $(READY)
	$(BIN)/palimpsest verify $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The docs site, into build/site: parts made from the code first; a warning is an error.
docs: $(READY)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Upstream's own tests, unmodified, against this package; the runner and the tests lie beside the checkout.
conformance: $(READY)
	$(BIN)/python ../shared/conformance/run.py --seeds ../shared/seeds --root impl

$(READY): requirements-dev.txt pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --requirement requirements-dev.txt
	$(BIN)/python -m pip install --no-build-isolation --constraint requirements-dev.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
