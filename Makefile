# Needs Python 3.11 or newer and make. The first run of anything fetches what it needs into .venv (and, for the
# tests with a real broker, into .cache); later runs work without a network.
#
#   make demo     run the demonstration                make test     run the tests that this machine can run
#   make bench    speed, as ratios in one run          make utility  accuracy against privacy, on real data
#   make search   property tests on new examples       make docs     the documentation, as a site
#   make everything   the tests for each learner, each version of Kafka and each store
#   make lint     ruff and mypy                        make mutate   seeded faults: is each caught?
#   make verify   kill it everywhere: exactly once?    make clean    remove what make made
#   make dashboards   Grafana's files, from their source
#   make audit    what attacks show of each claim, and of mutants
#   make fuzz     damaged events, labels, configurations, models, snapshots, logs and registries, 100,000 of each
#   make count    lines, keys of configuration, tests, import circles, words of pages
#   make wheel    a wheel with compiled kernels, for this version of Python
#   make sbom     the bill of materials of an installation, checked against the pins
#   make rivals   other libraries on the same streams, each in an environment of its own
#   make simulate     real workers in virtual time, on a cluster in memory: 1,000 seeds of faults
#   make search-log   a view that leaves uncharged: 100,000 lives of a lane whose storage lies
#   make repeat   every test that depends on chance, 200 times
#   make test-python PYTHON=python3.13                 the tests that need no broker, on another Python

# make demo ARGS="--json", make test ARGS="tests/unit -x"
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
KERNELS_STAMP := $(VENV)/.compiled-demo
DOCS_STAMP := $(VENV)/.installed-docs

# Tests start hundreds of processes: none of them is to compile its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env dashboards demo test everything test-python repeat search simulate search-log fuzz verify mutate count bench audit sbom wheel utility rivals readme docs docs-env lint format clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

env: $(STAMP)

# PYTHON=/path/to/python chooses the interpreter; otherwise the first that is new enough and really runs.
# The demonstration needs a quarter of the packages of the tests. Python compiles those modules that it imports.
$(DEMO_STAMP): pyproject.toml constraints.txt
	@set -e; \
	for python in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then echo "Python 3.11 or newer is needed; make PYTHON=/path/to/python chooses one" >&2; exit 2; fi; \
	"$$found" -m venv $(VENV) || { echo "The venv module is missing (Debian: apt-get install python3-venv)" >&2; exit 2; }
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[demo]'
	@touch $(DEMO_STAMP)

# Older versions of pip do not know `--group`.
$(STAMP): $(DEMO_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^pip==' constraints.txt)"
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --editable '.[demo]' --group test
	@touch $(STAMP)

# Two processes compile what the demonstration calls; it then loads that from disk.
COMPILE = $(BIN)/python -c 'import json, sys; from streampair_connectors.worker.factory import minimal_config, warm_up; \
	warm_up(minimal_config(sys.argv[1], json.loads(sys.argv[2]), {}))'
$(KERNELS_STAMP): $(DEMO_STAMP)
	@$(COMPILE) streampair.auc.PairFTRL '{"epsilon": 1, "delta": 1e-4, "horizon": 1250}' & \
	$(COMPILE) streampair.auc.PairOGD '{}' && wait $$!
	@touch $(KERNELS_STAMP)

demo: $(KERNELS_STAMP)
	$(BIN)/streampair demo $(ARGS)

# Four processes: three begin with tests that wait for brokers (tests/conftest.py). make test JOBS= uses one.
JOBS ?= -n 4
# Kernels are compiled before, by one process: four would each compile the same ones, while workers wait for them.
test: $(STAMP) $(DOCS_STAMP)
	cd tests && ../$(BIN)/python -m harness.warm
	STREAMPAIR_MAKE_TEST=1 $(BIN)/python -m pytest $(JOBS) $(ARGS)

everything:
	$(MAKE) test ARGS="--everything $(ARGS)"

# Another Python has an environment of its own, .cache/python-3.13, with the same versions of everything. What depends
# on the language is tested there: kernels, examples, states, what is written down.
FAST ?= $(addprefix tests/,unit/test_kernel_references.py unit/test_doctests.py unit/test_public_names.py unit/test_hashing.py \
	engine/test_fast_lane.py engine/test_golden.py engine/test_crash.py engine/test_log.py river/test_pipelines.py \
	river/test_frames.py river/test_states.py privacy/test_replay.py)
test-python:
	@set -e; \
	version=$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || \
	    { echo "name a Python that runs: make test-python PYTHON=/path/to/python" >&2; exit 2; }; \
	venv=.cache/python-$$version; \
	if [ ! "$$venv/.installed" -nt pyproject.toml ] || [ ! "$$venv/.installed" -nt constraints.txt ]; then \
	    "$(PYTHON)" -m venv "$$venv"; \
	    "$$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$$(grep '^pip==' constraints.txt)"; \
	    PIP_CONSTRAINT=constraints.txt "$$venv/bin/python" -m pip install --quiet --editable '.[demo]' --group test; \
	    touch "$$venv/.installed"; \
	fi; \
	"$$venv/bin/python" --version; \
	"$$venv/bin/python" -m pytest $(if $(JOBS),$(JOBS) --dist worksteal) $(FAST) $(ARGS)

# make repeat ARGS="--runs 50 tests/privacy". Workers have randomness of their own: whole runs repeat their tests.
REPEATED ?= $(addprefix tests/,unit river privacy engine connectors)
repeat: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m pytest -n 2 --dist worksteal --timeout 3600 -p harness.repeat $(or $(ARGS),$(REPEATED))

# Prints what it finds as lines to paste above the test (tests/harness/search.py).
search: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-profile=search $(ARGS)

# make simulate ARGS="--seeds 100000"; each seed with a fault prints its schedule, and the command that repeats it.
simulate: $(STAMP)
	cd tests && ../$(BIN)/python -m harness.simulation $(ARGS)

# Lives of a lane whose storage lies, drawn at random; prints the shortest script of each find.
search-log: $(STAMP)
	cd tests && ../$(BIN)/python -m harness.search_log $(ARGS)

# Prints the numbers of the cases that it finds; `harness.fuzz.case` repeats one.
fuzz: $(STAMP)
	cd tests && ../$(BIN)/python -m harness.fuzz $(ARGS)

# Workers, brokers and disks die at every step of a start and of a commit; make verify ARGS=--everything does so on each
# version of Kafka and with each store. A version has a process of its own; in another one learners move to a processor
# for which every kernel is compiled anew, and forests are audited.
verify: $(STAMP)
	$(BIN)/python -m pytest -n 3 -m verifier tests/broker tests/privacy/test_processors.py tests/privacy/test_audit.py tests/privacy/test_label_content.py $(ARGS)

# Puts each fault of tests/mutation/mutants.toml into a copy of the tree, and runs the tests that must fail.
mutate: $(STAMP)
	$(BIN)/python tests/mutation/run.py $(ARGS)

# make count ARGS="--tree DIR" counts another checkout, for figures before and after a change.
count: $(DOCS_STAMP)
	$(BIN)/python benchmarks/count.py $(ARGS)

bench: $(STAMP)
	$(BIN)/python benchmarks/learners.py
	$(BIN)/python benchmarks/private.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/lane.py
	$(BIN)/python benchmarks/worker.py

# Each mechanism, attacked: its claim, what the attack shows, and the defects that it catches.
audit: $(STAMP)
	$(BIN)/python benchmarks/audit.py $(ARGS)

utility: $(STAMP)
	$(BIN)/python benchmarks/utility.py --plot docs/images/utility.svg
	@echo
	$(BIN)/python benchmarks/demo.py

# River, CapyMOA (needs Java), Vowpal Wabbit, LightGBM and private rivals. Hours at first; what has a result is not run
# again. make rivals ARGS="--only streampair --again" repeats our own learners.
rivals: $(STAMP)
	$(BIN)/python benchmarks/rivals.py $(ARGS)

# Writes what demo, bench, utility and a run on Apache Kafka print into the pages, between their markers.
readme: $(STAMP)
	$(BIN)/python benchmarks/readme.py $(ARGS)

# The site, into .cache/site; a broken link or reference is an error.
$(DOCS_STAMP): $(STAMP)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --group docs
	@touch $(DOCS_STAMP)

docs-env: $(DOCS_STAMP)

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict $(ARGS)
	@echo "docs: .cache/site/index.html"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# The files that Grafana reads, from their one source.
dashboards: $(STAMP)
	$(BIN)/python deploy/grafana/dashboards.py

# A plain installation, and its bill of materials in CycloneDX: dist/streampair.cdx.json. Fails if a package is not the
# one that constraints.txt pins, or says nothing of its licence.
sbom: $(STAMP)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --group sbom
	rm -rf .cache/plain && $(BIN)/python -m venv .cache/plain
	.cache/plain/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt .
	mkdir -p dist
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --of JSON -o dist/streampair.cdx.json .cache/plain/bin/python
	$(BIN)/python deploy/sbom.py dist/streampair.cdx.json

# dist/streampair-VERSION-cpXYZ-cpXYZ-PLATFORM.whl: kernels compiled for any processor of this architecture, with the
# numba of this environment. Another numba compiles its own.
wheel: $(STAMP)
	mkdir -p dist/pure && rm -f dist/pure/*
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --wheel --outdir dist/pure . >dist/pure/build.log || { cat dist/pure/build.log >&2; exit 1; }
	$(BIN)/python deploy/compiled_wheel.py dist/pure/streampair-*.whl dist

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
