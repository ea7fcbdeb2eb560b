# Each target does its whole set-up on a fresh machine first (scripts/bootstrap.sh).
.PHONY: demo test lint bench image constraints
BIN := .venv/bin
# Most tests wait for processes and containers, so more workers than cores pay off.
WORKERS ?= 3
# In CI a test that can't run is a failure, so an engine that can't be had is one too.
TEST_SETUP := scripts/bootstrap.sh $(if $(CI),,--without-engine)

demo:
	@scripts/bootstrap.sh
	@$(BIN)/beige demo

test:
	@$(TEST_SETUP)
	@scripts/test-needs.sh
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
	@$(MAKE) --no-print-directory check

lint:
	@scripts/bootstrap.sh --without-engine
	@$(MAKE) --no-print-directory check

.PHONY: check
check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench:
	@scripts/bootstrap.sh
	$(BIN)/python -m benchmarks

image:
	@scripts/bootstrap.sh

# Pin what is installed now.
constraints:
	@head -n 2 constraints.txt > constraints.new
	@$(BIN)/python -m pip freeze --all | grep -v -i -E '^(pip|setuptools|wheel|beige-agents)|^-e|@' >> constraints.new
	@mv constraints.new constraints.txt
