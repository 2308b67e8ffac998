# Every target sets up what it needs: a virtual environment in .venv, wheels from the package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test bench lint format lock clean

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit("Proctor needs Python 3.11 or newer, found " + sys.version.split()[0] + "; run make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# The lock names everything, so pip has nothing to find out: where a package asks for another's
# extra, it would take the newest one, which has no hash here.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

demo: $(STAMP)
	@$(BIN)/python -m examples.demo

test: $(STAMP)
	$(BIN)/python -m pytest

bench: $(STAMP)
	$(BIN)/python -m tests.bench

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy -p examples
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/yamllint --strict --config-file deploy/.yamllint.yaml deploy
	$(BIN)/hadolint --failure-threshold info deploy/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(BIN)/kubernetes-validate --strict --quiet deploy/kubernetes/[!k]*.yaml

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The lock is a hashed export without the address of any index.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --all-extras pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
