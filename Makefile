# Two commands do everything: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# Without the option old releases of pip warn about packages that have only setup.py.
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --use-pep517
INSTALLED := $(VENV)/.installed
# The oldest supported release; a test compares its keys with those of the newest.
OLDEST_PYNAUTY := 2.8.6
OTHER := $(VENV)/other/pynauty-$(OLDEST_PYNAUTY)

BENCHED := $(VENV)/.installed-bench
INTEL := $(VENV)/.installed-intel
TORCH := $(VENV)/.installed-torch
BROWSER := $(VENV)/.installed-browser
MUTANTS := $(VENV)/.installed-mutants
PEERS := $(VENV)/.installed-peers
USERS := $(VENV)/.installed-users
# Options of the experiments, as in: make bench-tccg ARGS="--only abc- --tune 20"
ARGS ?=

# What travels to a GPU machine; PYTHON has the version of the Python there.
PACK ?= .cache/gpu-pack

.PHONY: help install install-intel install-torch install-nginx demo bench-canonical bench-retrieve \
	bench-database bench-fresh bench-tccg bench-dgfem bench-everyday bench-agreement \
	bench-bandwidth bench-fallback bench-firedrake bench-limits bench-plans bench-plans-seconds bench-programs bench-programs-moved bench-service bench-soak bench-sparse \
	bench-revisions bench-anonymous bench-verification bench-storage bench-cache-hits bench-contraction bench-random bench-totals bench-users \
	paper-deinsum paper-distal paper-eindecomp paper-spttn gpu-pack gpu-table facts sign-facts test test-long test-browser test-peers mutants golden-keys golden-schema check format \
	docs docs-links figures notebooks screenshots wheel oldest newest clean

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/: .*## /\t/' | expand -t 16

install: $(INSTALLED) $(OTHER) ## install the project and all it needs into .venv

$(INSTALLED): pyproject.toml setup.py constraints.txt $(wildcard feinsum/contraction/*.[ch])
	@echo "Installing into $(VENV) (one to three minutes, once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(OTHER): | $(INSTALLED)
	@$(INSTALL) --no-deps --target $@ pynauty==$(OLDEST_PYNAUTY)

$(BENCHED): pyproject.toml constraints.txt | $(INSTALLED)
	@echo "Installing the rivals into $(VENV) (some minutes, once) ..."
	@$(INSTALL) --constraint constraints.txt --editable '.[bench]'
	@touch $@

install-intel: $(INTEL) ## also Intel's OpenCL runtime for CPUs (850 MB)

$(INTEL): pyproject.toml constraints.txt | $(INSTALLED)
	@echo "Installing Intel's OpenCL runtime into $(VENV) (850 MB, once) ..."
	@$(INSTALL) --constraint constraints.txt --editable '.[intel]'
	@touch $@

install-torch: $(TORCH) ## also torch, without which its tests are skipped

$(TORCH): pyproject.toml constraints.txt | $(INSTALLED)
	@echo "Installing torch into $(VENV) (some minutes, once) ..."
	@$(INSTALL) --constraint constraints.txt --editable '.[torch]'
	@touch $@

install-nginx:   ## Debian's nginx, which the tests of the proxy need (as root)
	@apt-get update -qq
	@DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends nginx-light openssl

demo: $(INSTALLED) ## tune, retrieve and check three real kernels (under 4 minutes)
	@$(RUN) benchmarks/demo.py

bench-canonical: $(INSTALLED) ## time canonicalization, draw the figures of docs/figures
	@$(RUN) benchmarks/canonicalization.py

bench-retrieve: $(INSTALLED) ## time each stage of a retrieval
	@$(RUN) benchmarks/retrieve.py

bench-database: $(INSTALLED) ## measure a database of a million facts (20 minutes, 5 GB); ARGS=...
	@$(RUN) benchmarks/database.py $(ARGS)

bench-fresh: $(INSTALLED) ## time retrievals in two fresh processes; ARGS=...
	@$(RUN) benchmarks/fresh.py $(ARGS)

bench-tccg: $(BENCHED) ## the 48 contractions of TCCG against other libraries; ARGS=...
	@$(RUN) -m benchmarks.experiments tccg $(ARGS)

bench-dgfem: $(BENCHED) ## the 40 operators of DG against other libraries; ARGS=...
	@$(RUN) -m benchmarks.experiments dgfem $(ARGS)

bench-everyday: $(BENCHED) ## einsums that public packages call, against other libraries; ARGS=...
	@$(RUN) -m benchmarks.experiments everyday --terms fresh $(ARGS)

bench-agreement: $(INSTALLED) ## check that two runs of the tuner agree; ARGS=...
	@$(RUN) benchmarks/agreement.py $(ARGS)

bench-service: $(INSTALLED) ## the service under load, on SQLite and PostgreSQL; ARGS=...
	@$(RUN) benchmarks/service.py $(ARGS)

bench-anonymous: $(INSTALLED) ## measure memory and time of requests without a key; ARGS=...
	@$(RUN) -m benchmarks.anonymous $(ARGS)

bench-verification: $(INSTALLED) ## time the verification of retrieved recipes; ARGS=...
	@$(RUN) -m benchmarks.verification $(ARGS)

bench-soak: $(INSTALLED) ## check the memory growth of the service in 10 minutes; ARGS=...
	@$(RUN) -m benchmarks.soak $(ARGS)

bench-storage: $(INSTALLED) ## bytes of a fact in each kind of database; ARGS=...
	@$(RUN) -m benchmarks.storage $(ARGS)

bench-cache-hits: $(INSTALLED) ## simulate which caches answer a million builds a day; ARGS=...
	@$(RUN) benchmarks/cache_hits.py $(ARGS)

bench-revisions: $(INSTALLED) ## whole programs with an older version and this one; ARGS=OLD ...
	@$(RUN) -m benchmarks.revisions $(ARGS)

gpu-pack: $(INSTALLED) ## wheels, kernels and cases for benchmarks/gpu.sh; PACK=... PYTHON=... ARGS=...
	@OPENBLAS_NUM_THREADS=1 $(RUN) -m benchmarks.gpu.pack build $(PACK) --python $(PYTHON) $(ARGS)

gpu-table: $(INSTALLED) ## the table of a GPU into the documentation; ARGS=RESULTS/gpu-NAME.txt
	@$(RUN) docs/figures/tables.py $(ARGS)

bench-bandwidth: $(INSTALLED) ## einsums bound by memory bandwidth against the triad
	@$(RUN) benchmarks/bandwidth.py $(ARGS)

bench-fallback: $(INSTALLED) ## the family for every einsum against the untransformed kernel
	@$(RUN) benchmarks/fallback.py $(ARGS)

bench-never-slower: $(INSTALLED) ## check that retrieved kernels are not slower; ARGS=...
	@$(RUN) benchmarks/never_slower.py $(ARGS)

bench-firedrake: $(INSTALLED) ## kernels of one cell as PyOP2 compiles them against retrieved ones; ARGS=...
	@$(RUN) benchmarks/firedrake.py $(ARGS)

bench-limits: $(INSTALLED) ## measure what limits recorded recipes
	@$(RUN) benchmarks/limits.py $(ARGS)

bench-sparse: $(BENCHED) ## sparse tensors times dense ones, against scipy, numba, C and tensora; ARGS=...
	@$(RUN) benchmarks/sparse.py $(ARGS)

bench-plans: $(INSTALLED) ## count what plans move, beside the papers' schedules; ARGS=...
	@$(RUN) -m benchmarks.papers $(ARGS)

paper-deinsum: $(INSTALLED) ## print the figures of Deinsum, ours, and why they differ
	@$(RUN) -m benchmarks.papers.figures deinsum

paper-distal: $(INSTALLED) ## print the figures of DISTAL, ours, and why they differ
	@$(RUN) -m benchmarks.papers.figures distal

paper-eindecomp: $(INSTALLED) ## print the figures of EinDecomp, ours, and why they differ
	@$(RUN) -m benchmarks.papers.figures eindecomp

paper-spttn: $(INSTALLED) ## print the figures of SpTTN-Cyclops, ours, and why they differ
	@$(RUN) -m benchmarks.papers.figures spttn

bench-plans-seconds: $(INSTALLED) ## time plans of two ranks against two threads; ARGS=...
	@$(RUN) -m benchmarks.plans_seconds $(ARGS)

bench-programs: $(BENCHED) ## time programs of einsums against numpy, torch and JAX; ARGS=...
	@$(RUN) benchmarks/programs.py $(ARGS)

bench-programs-moved: $(BENCHED) ## count what plans of programs, XLA and dask.array move; ARGS=...
	@$(RUN) -m benchmarks.programs_moved $(ARGS)

bench-random: $(INSTALLED) ## calls of random einsums against numpy and torch; ARGS=...
	@$(RUN) -m benchmarks.random_calls $(ARGS)

bench-contraction: $(INSTALLED) ## time calls without a compiled kernel against numpy
	@$(RUN) benchmarks/contraction.py

bench-totals: $(BENCHED) ## time whole processes against numpy, opt_einsum and torch; ARGS=...
	@$(RUN) -m benchmarks.totals $(ARGS)

$(USERS): pyproject.toml constraints.txt | $(INSTALLED)
	@$(INSTALL) --constraint constraints.txt --editable '.[users]'
	@touch $@

bench-users: $(USERS) ## PySCF, cotengra, quimb and opt_einsum, with and without feinsum; ARGS=...
	@$(RUN) -m benchmarks.users $(ARGS)

facts: $(INSTALLED) ## tune both suites, write the facts that are shipped (hours)
	@$(RUN) benchmarks/facts.py $(ARGS)

sign-facts: $(INSTALLED) ## sign the facts that are shipped; ARGS=FILE of the private key, or --verify
	@$(RUN) benchmarks/sign_facts.py $(ARGS)

# Three processes for two cores: some tests wait for other processes, or for limits.
test: $(INSTALLED) $(OTHER) ## the test suite
	@$(RUN) -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

test-long: $(INSTALLED) $(OTHER) ## the long counts, and everything else
	@$(RUN) -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m long

test-browser: $(BROWSER) ## the pages in headless Chromium; root gets it from Debian
	@for one in chromium chromium-browser google-chrome; do \
		command -v $$one >/dev/null && exit 0; done; \
	test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq \
		--no-install-recommends -o DPkg::Lock::Timeout=600 chromium >/dev/null \
		|| { echo "No Chromium is found; install it: apt-get install chromium"; exit 1; }
	@$(RUN) -m pytest -q -m browser tests/service/pages

$(BROWSER): pyproject.toml constraints.txt | $(INSTALLED)
	@echo "Installing Playwright into $(VENV) (once) ..."
	@$(INSTALL) --constraint constraints.txt --editable '.[browser]'
	@touch $@

test-peers: $(PEERS) ## the tests of numpy, opt_einsum and JAX with feinsum.einsum; ARGS=numpy
	@$(RUN) tests/try_peers.py $(ARGS)

$(PEERS): pyproject.toml constraints.txt | $(INSTALLED)
	@echo "Installing JAX into $(VENV) (once) ..."
	@$(INSTALL) --constraint constraints.txt --editable '.[peers]'
	@touch $@

mutants: $(MUTANTS) ## do tests notice mistakes in the code? ARGS="canonical -n 60"
	@$(RUN) tests/try_mutants.py $(ARGS)

$(MUTANTS): pyproject.toml constraints.txt | $(INSTALLED)
	@echo "Installing cosmic-ray into $(VENV) (once) ..."
	@$(INSTALL) --constraint constraints.txt --editable '.[mutants]'
	@touch $@

golden-keys: $(INSTALLED) ## add new workloads to the golden keys
	@$(RUN) -m tests.canonical.golden

golden-schema: $(INSTALLED) ## write the schema of exported lines anew
	@$(RUN) -m tests.db.golden_schema

check: $(INSTALLED) ## lint, names, types, layers
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(RUN) tests/check_names.py
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-cache

format: $(INSTALLED) ## format the code
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

docs: $(INSTALLED) ## build the site of the documentation into docs/_build/html
	@$(RUN) -m sphinx --quiet --fail-on-warning --keep-going -c docs . docs/_build/html
	@echo "Open docs/_build/html/docs/index.html in a browser."

docs-links: $(INSTALLED) ## check the links of the documentation to other sites
	@$(RUN) -m sphinx --quiet -b linkcheck -c docs . docs/_build/links

figures: $(INSTALLED) ## draw the pictures, and write the tables, of the documentation
	@$(RUN) docs/figures/induced_graph.py
	@$(RUN) docs/figures/bounds.py
	@$(RUN) docs/figures/gain.py
	@$(RUN) docs/figures/plans.py
	@$(RUN) docs/figures/tables.py

notebooks: $(INSTALLED) ## run the notebooks of the documentation, and store what they draw
	@$(RUN) -m tests.docs.test_notebooks $(ARGS)

screenshots: $(BROWSER) ## take the pictures of the pages; needs Chromium
	@$(RUN) -m docs.figures.pages

wheel: $(INSTALLED) ## build the wheel from the sdist, try it in a fresh environment
	@$(RUN) tests/try_wheel.py

oldest: $(INSTALLED) ## try the oldest packages that pyproject.toml allows, in a fresh environment
	@$(RUN) tests/try_versions.py oldest

newest: $(INSTALLED) ## try the newest packages that pyproject.toml allows, in a fresh environment
	@$(RUN) tests/try_versions.py newest

clean: ## remove what was built
	rm -rf $(VENV) build dist docs/_build docs/reference/api *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
