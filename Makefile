# Every target sets itself up: a virtual environment in the tree, with the locked versions of requirements/runtime.txt, which is enough to run
# Basalt and its demos, or of requirements/dev.txt, which holds PySpark and all tools.
# Needed beforehand: GNU make and Python 3.11 or later (with its venv module). What has to do with HBase also needs a JDK
# (17, or 11) and Maven: tests of it are skipped without them, unless CI is set. So are those that need a package of requirements/system.txt, which
# `make system-packages` installs: tests of Kerberos, of the console in a browser, and of what Prometheus reads.

VENV := .venv
PYTHON := $(VENV)/bin/python
CODE := engine control pipeline demo deploy $(wildcard bench)
PIP := $(PYTHON) -m pip --disable-pip-version-check --quiet
INSTALL := $(PYTHON) deploy/locked_install.py

.DEFAULT_GOAL := help
.PHONY: help venv dev system-packages demo hbase-demo spark-demo hbase-start hbase-stop test soak java jar dist check lint types imports bytecode docs bench reference monitoring screenshots format lock image clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

venv: $(VENV)/running ## Build the virtual environment in .venv, with what running Basalt needs

dev: $(VENV)/installed ## The same with what developing needs (PySpark, tools), as the targets below do by themselves

system-packages: ## Install the Debian packages that some tests need and that are missing (as root)
	@missing=$$(for package in $(SYSTEM_PACKAGES); do dpkg --status $$package >/dev/null 2>&1 || echo $$package; done); \
	if [ -z "$$missing" ]; then exit; fi; \
	echo "Installing what tests need:" $$missing; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update --quiet=2 && apt-get install --quiet=2 --yes --no-install-recommends $$missing
SYSTEM_PACKAGES = $(strip $(shell sed 's/ *\#.*//' requirements/system.txt))

demo: $(VENV)/running ## Publish a real access log, have workers count it, SIGKILL all of them on the way, and check the result (LOG=path for your own; OPEN=1: the server goes on, for its console)
	@$(PYTHON) -m demo $(if $(LOG),"$(LOG)") $(if $(OPEN),--open)

hbase-demo: $(VENV)/running ## The same demo on a real HBase that is started for it (needs a JDK and Maven)
	@$(PYTHON) -m demo.on_hbase $(if $(LOG),"$(LOG)")

spark-demo: $(VENV)/installed ## An access log through a pipeline of Spark queries, every process killed once (LOG=path; needs a JDK)
	@$(PYTHON) -m demo.spark $(if $(LOG),"$(LOG)")

hbase-start: $(VENV)/running ## Start a standalone HBase with its Thrift gateways in build/hbase (HBASE="--set NAME=VALUE" for settings)
	@$(PYTHON) -m deploy.hbase start $(HBASE)

hbase-stop: $(VENV)/running ## Stop it; its tables stay
	@$(PYTHON) -m deploy.hbase stop

test: ## Run the checks and every test (PYTEST="-k name": those tests alone; UPDATE=1 rewrites the story scripts)
	@$(MAKE) --no-print-directory --silent --jobs 2 $(VENV)/installed $(if $(PYTEST),,$(BESIDE_PIP))
	$(if $(PYTEST),,@$(MAKE) --no-print-directory --jobs 2 --output-sync=target types bytecode lint imports $(filter-out $(BESIDE_PIP),java))
	$(PYTHON) -m pytest $(or $(PYTEST),$(PROCESSES)) $(REPORT)

soak: $(VENV)/installed ## The same tests with the budgets of a night: more seeds, kills and examples (PYTEST="-k name" for some)
	BASALT_SOAK=1 $(PYTHON) -m pytest $(or $(PYTEST),$(PROCESSES)) $(REPORT) --override-ini faulthandler_timeout=7200

# Building the virtual environment keeps one core busy for a minute: Maven, which does not need it, has the other one meanwhile.
BESIDE_PIP := $(if $(wildcard $(VENV)/installed),,java)

# Tests start several hundred processes of Python, and each would compile all modules anew where an environment forbids to write bytecode:
# 1.4 s of a core for a server, 11 s for each process that collects the tests.
unexport PYTHONDONTWRITEBYTECODE

# Maven runs for seconds, and so without the second compiler and with the serial collector: two thirds of the time of a core.
export MAVEN_OPTS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC

# The whole suite runs in several processes; tests/sharing.py says how many, and which tests stay together. Some of it, and what rewrites
# files that other tests read, runs in one.
PROCESSES := $(if $(UPDATE),,--numprocesses auto --dist loadscope --no-loadscope-reorder)

# The slowest tests are printed, and how long each took is in the file.
REPORT := --durations 30 --durations-min 1 --junit-xml build/test-results.xml

java: ## Compile and test the coprocessor (needs a JDK and Maven; JAVA="-Dtest=Name" for some)
	@if command -v mvn >/dev/null && command -v javac >/dev/null; then \
	    mvn --batch-mode --no-transfer-progress --file coprocessor/pom.xml package $(JAVA); \
	elif [ -n "$$CI" ]; then \
	    echo 'CI is set, so the tests of the coprocessor must run; they need a JDK and Maven.' >&2; exit 1; \
	else \
	    echo 'Skipping the tests of the coprocessor: they need a JDK (17) and Maven.'; \
	fi

jar: $(VENV)/running ## Build the coprocessor's jar, where the Python package takes it from
	@$(PYTHON) -m deploy.coprocessor_jar

dist: $(VENV)/running ## Build what a release uploads into dist: the wheel with the jar inside, and the source (needs a JDK and Maven)
	@$(PYTHON) -m deploy.dist

check: lint types imports docs ## Run the checks alone: style, types, layers, docs

lint: $(VENV)/installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PYTHON) -m deploy.blocking_twin --check

types: $(VENV)/installed
	$(VENV)/bin/mypy $(CODE) tests

imports: $(VENV)/installed
	$(VENV)/bin/lint-imports

# Processes that collect the tests at once would each compile all of them. One does it, beside the types, which saves 35 s of a core; what
# cannot be collected the tests themselves report.
bytecode: $(VENV)/installed
	@$(PYTHON) -m pytest --collect-only --quiet --quiet >/dev/null || true

docs: $(VENV)/installed
	$(PYTHON) -m pytest --quiet tests/docs

bench: $(VENV)/installed ## Measure, each figure next to its yardstick (BENCH="--help" for choices)
	@$(PYTHON) -m bench $(BENCH)

reference: $(VENV)/installed ## Write what docs/reference says of settings, commands, errors, metrics and calls anew from the code
	@$(PYTHON) -m deploy.reference

monitoring: $(VENV)/installed ## Write the rules and dashboards of deploy/monitoring anew from the code
	@$(PYTHON) -m deploy.monitoring

screenshots: $(VENV)/installed ## Take the pictures of the console in docs/operations/console anew (needs chromium)
	@$(PYTHON) -m tests.browser.screenshots

format: $(VENV)/installed ## Format the code, mend what ruff can mend, and generate the blocking client anew
	@$(PYTHON) -m deploy.blocking_twin
	$(VENV)/bin/ruff check --fix-only --quiet .
	$(VENV)/bin/ruff format .

lock: ## Write requirements/*.txt anew from pyproject.toml (needs uv)
	uv pip compile pyproject.toml $(LOCK) --extra hbase --extra tephra --output-file requirements/runtime.txt
	uv pip compile pyproject.toml $(LOCK) --constraint requirements/runtime.txt --extra hbase --extra tephra --extra arrow --extra jwt --extra otel --output-file requirements/image.txt
	uv pip compile --group build $(LOCK) --output-file requirements/build.txt
	uv pip compile pyproject.toml $(LOCK) --constraint requirements/image.txt --constraint requirements/build.txt --extra dev --output-file requirements/dev.txt
	uv pip compile pyproject.toml $(LOCK) --constraint requirements/dev.txt --extra kerberos --output-file requirements/kerberos.txt
	uv pip compile --group kerberos-build $(LOCK) --output-file requirements/kerberos-build.txt
	uv pip compile --group browser $(LOCK) --constraint requirements/dev.txt --output-file requirements/browser.txt
LOCK := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header

image: ## Build the container images basalt:dev and basalt-hbase:dev (needs docker)
	docker build --file deploy/Dockerfile --target basalt --tag basalt:dev .
	docker build --file deploy/Dockerfile --target hbase --tag basalt-hbase:dev .

clean: ## Remove the virtual environment, builds and caches
	@if [ -x $(PYTHON) ] && [ -d build/hbase ]; then $(PYTHON) -m deploy.hbase stop; fi
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .schemathesis coprocessor/target
	rm -f engine/basalt_engine/stores/hbase/basalt-coprocessor.jar
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment holds absolute paths, so one that was moved or copied with the tree is built anew.
ifneq ($(shell cat $(VENV)/locked 2>/dev/null),$(CURDIR))
.PHONY: $(VENV)/locked
endif

$(VENV)/locked: requirements/runtime.txt requirements/build.txt
	@for candidate in python3.11 python3; do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo 'Basalt needs Python 3.11 or later, and neither python3.11 nor python3 is one; install it and try again.' >&2; exit 1; \
	elif ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$found has no venv module; install it (on Debian and Ubuntu: apt install python3-venv) and try again." >&2; exit 1; \
	fi; \
	echo "Setting up $(VENV) with $$("$$found" --version) and the locked versions; this happens once"; \
	rm -rf $(VENV) && "$$found" -m venv $(VENV)
	@$(INSTALL) requirements/runtime.txt requirements/build.txt
	@printf '%s\n' '$(CURDIR)' > $@

$(VENV)/running: $(VENV)/locked pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# gssapi is compiled, which takes MIT Kerberos' headers and a compiler. Where krb5-config is not, tests of Kerberos are skipped, or fail, if CI is set.
KERBEROS := $(if $(shell command -v krb5-config),$(VENV)/kerberos)

$(VENV)/kerberos: $(VENV)/locked requirements/kerberos.txt requirements/kerberos-build.txt | $(VENV)/running
	@$(INSTALL) requirements/kerberos-build.txt
	@$(INSTALL) --no-build-isolation requirements/kerberos.txt
	@touch $@

# What drives Chromium is 160 MB with its driver, and of use only where Chromium is. Its own browsers are not downloaded: tests run the machine's.
BROWSER := $(if $(shell command -v chromium),$(VENV)/browser)

$(VENV)/browser: $(VENV)/locked requirements/browser.txt | $(VENV)/running
	@$(INSTALL) requirements/browser.txt
	@touch $@

$(VENV)/installed: $(VENV)/locked requirements/dev.txt | $(VENV)/running $(KERBEROS) $(BROWSER)
	@$(INSTALL) requirements/dev.txt
	@touch $@
