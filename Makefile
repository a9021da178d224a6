# SPDX-License-Identifier: GPL-2.0-or-later
# Everything can be run a second time; what is there already is used again.

PYTHON := .venv/bin/python
CLUSTER := $(PYTHON) -m container
CODE := controller checkpointing gandiva container examples tests benchmarks

# make test: what a change must pass. make nightly (DEPTH=nightly): that, what is marked nightly, and more draws.
DEPTH := test
SHALLOW := $(if $(filter nightly,$(DEPTH)),, and not nightly)
export GANDIVA_TEST_DEPTH := $(DEPTH)
# Without byte code each worker of pytest compiles every test again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env demo test nightly unit processes torch roles lint live cases smoke faults faultsim fuzz kills quick-faults quick-soak cluster deb deb-test bench overhead growth soak fidelity clean

help: ## Show this list
	@printf 'Gandiva for Slurm: what make can do\n\n'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

env: ## Make the Python environment (.venv); the other targets do it as needed
	@scripts/environment.sh

demo: ## Bring a mini cluster up, run jobs of three users on shared GPUs, show them live, print the report
	@scripts/environment.sh demo
	@$(PYTHON) scripts/demo.py

test: env ## What a change must pass, and CI runs: lint, unit tests, and live tests on a real Slurm (20 minutes)
	@$(PYTHON) -m tests.parts test

nightly: env ## All tests, for releases and for whoever touches what they cover (an hour)
	@$(PYTHON) -m tests.parts nightly

unit: env ## Unit tests: no Docker
	@printf '==> Unit tests\n'
	@$(PYTHON) -m pytest tests -m 'not live and not processes$(SHALLOW)' -q --ignore tests/live -n 4 --dist worksteal

# Agents take the jobs of a mini cluster on the same machine for their own node's, unless they do not see them.
APART := unshare --pid --fork --kill-child --mount-proc
processes: env ## Real node agents, jobs and drivers on mock GPUs: no Docker
	@printf '==> Node agents and jobs on mock GPUs\n'
	@apart='$(APART)'; $$apart true 2> /dev/null || apart=; \
	$$apart $(PYTHON) -m pytest tests/unit -m 'processes$(SHALLOW)' -q -n 4 --dist worksteal

torch: env ## The job side with a real PyTorch, on the CPU (the image: once, 220 MB)
	@printf '==> The job side with PyTorch\n'
	@$(PYTHON) -m tests.in_torch_image

roles: env ## What pip installs for each role, in a virtual environment of its own: a minute
	@printf '==> Extras of pip\n'
	@$(PYTHON) -m tests.roles

lint: env ## ruff and mypy --strict
	@printf '==> Lint: ruff, mypy --strict\n'
	@.venv/bin/ruff check $(CODE)
	@.venv/bin/ruff format --check --quiet $(CODE) || { printf 'error: run .venv/bin/ruff format\n' >&2; exit 1; }
	@.venv/bin/mypy --no-error-summary $(CODE)

smoke: env ## A few live tests on Slurm 24.11 with the command adapter (RELEASE=, ADAPTER= choose others)
	@printf '==> Smoke tests on another Slurm release\n'
	@RELEASE=$${RELEASE:-trixie} $(PYTHON) -m pytest tests/live -m 'live and smoke$(SHALLOW)' -q -n 2 --dist worksteal

live: env ## Live tests: real Slurm in containers, mock GPUs (KEEP=1 keeps the clusters, three; CLUSTERS=N makes N)
	@printf '==> Live tests on mini clusters\n'
	@$(CLUSTER) build
	@$(PYTHON) -m pytest tests/live -m 'live$(SHALLOW)' -q --ignore tests/live/test_packages.py -n $(or $(CLUSTERS),3) --dist loadgroup

cases: env ## What public reports, scripts and files showed, all kinds of tests (live: on mini clusters)
	@printf '==> Public cases\n'
	@$(CLUSTER) build
	@$(PYTHON) -m pytest tests -m 'public and (live or not live)' -q -n 3 --dist loadgroup

faults: env ## Break every part at every step on a real Slurm (QUICK=1: one of each kind; CLUSTERS=N; WRITE=1: into the docs)
	@printf '==> Faults on mini clusters\n'
	@$(PYTHON) -m tests.faults $(if $(QUICK),$(if $(SHALLOW),--light,--quick)) $(if $(WRITE),--write) $(if $(CLUSTERS),--clusters $(CLUSTERS))

faultsim: env ## The same and more in seeded simulation, 1,000 kills among them (QUICK=1: one of each kind)
	@$(PYTHON) -m tests.unit.faults $(if $(QUICK),quick)

fuzz: env ## Throw junk at everything that takes input (FUZZ_CASES=10000, FUZZ_SEED=4)
	@$(PYTHON) -m tests.fuzz $(or $(FUZZ_CASES),10000)

kills: env ## Kill a writer of the checkpoint store at random points (KILLS=1000, SEED=1)
	@$(PYTHON) -m tests.unit.checkpointing.kills $(or $(KILLS),1000) $(or $(SEED),1)

quick-faults:
	@$(MAKE) --no-print-directory faults QUICK=1

quick-soak:
	@$(MAKE) --no-print-directory soak QUICK=1

cluster: env ## Bring a mini cluster named dev up and leave it running (gandiva-cluster --help)
	@$(CLUSTER) up
	@printf 'Running. Try: %s sh login --user alice. Remove it with: make clean\n' '.venv/bin/gandiva-cluster'

deb: env ## Debian packages for forky (Slurm 26.05) and trixie (24.11), in build/deb
	@$(CLUSTER) deb

deb-test: env ## The packages: a cluster from them, systemd, upgrade, purge, both releases (QUICK=1: forky, the short ones)
	@for release in forky $(if $(QUICK),,trixie); do \
	    printf '==> Packages on %s\n' $$release; \
	    RELEASE=$$release ALL=$(if $(QUICK),,1) $(PYTHON) -m pytest tests/live/test_packages.py -m live -q || exit 1; \
	done

bench: env ## Benchmarks: step() overhead, loop time, other people's simulators, gap at a switch
	@$(PYTHON) benchmarks/run.py

overhead: env ## What the controller costs with 8 to 10,000 jobs in a real slurmctld (10 minutes)
	@$(PYTHON) -m benchmarks.overhead

growth: env ## 1,000 jobs for 24 simulated hours: does anything grow? (20 minutes)
	@$(PYTHON) -m benchmarks.growth

soak: env ## 610 jobs on 64 nodes x 8 GPUs of a real Slurm for 30 minutes, every rule checked (QUICK=1: 5 minutes)
	@$(PYTHON) -m benchmarks.soak $(if $(QUICK),--quick)

fidelity: env ## Compare the simulator with results of other people's simulators
	@$(PYTHON) benchmarks/fidelity/run.py
	@$(PYTHON) benchmarks/fidelity/gavel.py --only '^(ae|cont96_phys)/'

clean: ## Remove everything this folder made: clusters, images, the Docker engine it started, .venv, build
	@if [ -x $(PYTHON) ]; then $(CLUSTER) clean; fi
	@rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
