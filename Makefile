# Two commands matter: `make demo` and `make test`. Both set up all they need.
PYTHON ?= python3
BIN := .venv/bin
ALL_TESTS := $(BIN)/pytest -n 2 --dist loadfile -q --durations=15 --durations-min=1
# What is compiled once need not be compiled by every process that a test starts.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-ci test-long lint format bench docs proto clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing (runs by itself before the others)
	@$(PYTHON) setup/prepare.py

demo: setup ## Show Penstock at work; ONCE=1 ends by itself
	@$(BIN)/penstock demo $(if $(ONCE),--once)

test: setup ## Run all tests
	@$(ALL_TESTS)

test-ci: setup ## Run all tests; those that failed, five at most, once more by themselves
	@status=0; $(ALL_TESTS) || status=$$?; \
	[ $$status -eq 1 ] || exit $$status; \
	$(PYTHON) setup/failed_tests.py 5 && \
	$(BIN)/pytest --last-failed --last-failed-no-failures none -q

test-long: setup ## Run them with the series: more walks, kills and examples; takes hours
	@$(BIN)/pytest -n 2 --dist loadfile -q --durations=30 --durations-min=1 --long

lint: setup ## Check style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: setup ## Bring the code into the house style
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup ## Run all benchmarks
	@$(BIN)/penstock bench all

docs: setup ## Write the generated part of the reference anew
	@$(BIN)/python setup/reference.py

proto: setup ## Generate the Python modules of the gRPC messages anew
	@$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/penstock/client/privacy/privacy.proto

clean: ## Remove what the set-up and the tests made here
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
