# SPDX-License-Identifier: Apache-2.0
# The two commands of README.md: `make cloud` and `make test`. Everything they need, they install.
SHELL := /bin/bash
LAB := devstack/lab/lab
VENV := $(or $(NUMA_EXT_LAB),.lab)/venv
PYTHON := $(VENV)/bin/python
PYTEST := $(PYTHON) -m pytest --durations=10
REACHABLE := $(PYTHON) -m tests.reachable
RALLY := $(or $(NUMA_EXT_LAB),.lab)/rally/venv
NOVA33 := $(abspath $(or $(NUMA_EXT_LAB),.lab)/nova33)
NEUTRON := $(abspath $(or $(NUMA_EXT_LAB),.lab)/neutron)

# The tests start several hundred processes that import the same files: without byte code on the disk each of them
# compiles them again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv cloud test check lint docs lab-up test-unit test-in-nova test-nova33 test-neutron test-integration test-rotating test-long
.PHONY: man link sbom config bench test-rally rally rally-long clean distclean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@for bench in benchmarks/bench_*.py; do name=$${bench#benchmarks/bench_}; name=$${name%.py}; \
	  printf "  make %-18s %s\n" "bench-$${name//_/-}" "$$(sed -n 's/^"""\(.*\)$$/\1/p' $$bench | head -n 1)"; done

cloud:  ## set up the lab cloud, boot five servers, show what was decided and enforced
	$(LAB) up
	$(LAB) show

test:  ## lint, types, docs, unit, functional, integration on the lab; all parts, even when one fails; what each took
	@python3 -m tests.budget test $(MAKE) --no-print-directory

check: venv  ## while working: lint, types, unit, functional and conformance tests; no lab
	@python3 -m tests.budget check $(MAKE) --no-print-directory

venv:
	@$(LAB) prepare

lab-up:
	$(LAB) up

lint: venv  ## ruff, mypy --strict, import contracts; gofmt and go vet where Debian's Go is
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(VENV)/bin/lint-imports
	$(PYTHON) -m tools.lint_go

docs: venv  ## build the documentation, warnings are errors
	$(PYTHON) -m sphinx -q -W --keep-going -b html doc/source doc/build/html

man: venv  ## make the man pages (doc/build/man)
	@mkdir -p doc/build/man
	@for page in doc/source/cli/num*.rst; do name=$$(basename $$page .rst); \
	  section=$$(sed -n 's/^:Manual section: //p' $$page); \
	  $(PYTHON) -m docutils --writer=manpage --strict $$page doc/build/man/$$name.$$section; done

link: venv  ## build the link of remote GPUs (Go) into the cache, once for each content, and print where it is
	$(LAB) link

config: venv  ## generate sample configuration and dashboards under etc/, and the reference tables of the documentation
	$(VENV)/bin/oslo-config-generator --config-file etc/numa-host-agent/config-generator.conf
	$(VENV)/bin/oslo-config-generator --config-file etc/nova/config-generator.conf
	$(VENV)/bin/oslo-config-generator --config-file etc/numa-ext-jobs/config-generator.conf
	$(VENV)/bin/oslopolicy-sample-generator --config-file etc/numa-ext-jobs/policy-generator.conf
	$(PYTHON) -m tools.dashboards
	$(PYTHON) -m tools.tables

test-unit: venv  ## unit, functional and conformance tests
	$(REACHABLE) $(PYTEST) -q -n 5 --dist loadfile --no-loadscope-reorder tests/unit tests/functional tests/conformance

test-in-nova: venv  ## the stories in nova's own test bed, and nova's own tests with our filter and weigher
	$(PYTEST) -q -n 3 tests/in_nova

test-nova33: venv  ## the scheduler's tests on nova 33 (2026.1), laid over the environment's nova
	test -d $(NOVA33) || $(PYTHON) -m pip install -q --no-deps --target $(NOVA33) 'nova==33.*'
	PYTHONPATH=$(NOVA33) $(PYTHON) -m pytest -q tests/unit/nova_numa_ext tests/functional/placement tests/functional/scheduler
	PYTHONPATH=$(NOVA33) $(PYTHON) -m pytest -q tests/in_nova

test-neutron: venv  ## openstack numa net qos on a real Neutron in process, laid over the environment
	test -d $(NEUTRON) || $(PYTHON) -m pip install -q --no-deps --target $(NEUTRON) 'neutron==29.*' 'neutron-lib==5.*' 'os-ken==4.*' \
	  'pecan==1.8.*' 'python-designateclient==7.*' 'python-novaclient==18.*' 'ncclient==0.7.*'
	PYTHONPATH=$(NEUTRON) $(PYTHON) -m pytest -q tests/neutron

test-integration: venv lab-up  ## integration tests on the lab (brings it up when it is down)
	$(PYTEST) -v -o timeout=1200 tests/integration

test-rotating: venv  ## the share of the shorter long tests that is this commit's turn; SHARD=i/N takes another one
	$(PYTHON) -m tests.long --rotating $(SHARD)

test-long: venv  ## the full matrices (hours); SHARD=i/N runs one share of them
	$(PYTHON) -m tests.long $(SHARD)

test-rally:  ## the tests of the Rally plug-ins, in Rally's own environment; no cloud
	$(LAB) rally --prepare
	$(RALLY)/bin/python -m pytest -q -W ignore tests/rally

rally: venv test-rally  ## Rally tasks on the local compute and one emulated host; report and JUnit in .lab/rally/out
	$(LAB) up --hosts 1
	$(LAB) rally

rally-long: venv test-rally lab-up  ## also churn, migration, elastic group, filter on and off, sweep, characterisation (an hour)
	$(LAB) rally --long

bench-%: venv  ## run one benchmark, JSON=FILE keeps its result
	$(PYTHON) -m benchmarks.bench_$(subst -,_,$*) $(if $(JSON),--json $(JSON))

# Models are fitted by libraries that do not stand beside nova; on small models threads cost more than they give.
bench-elastic: venv
	@set -e; models=$$($(LAB) models | tail -n 1); PYTHONPATH=$$models OPENBLAS_NUM_THREADS=1 \
	  $(PYTHON) -m benchmarks.bench_elastic $(if $(JSON),--json $(JSON))

bench-rgpu: venv
	@set -e; program=$$($(LAB) link | tail -n 1); pocl=$$($(LAB) pocl) && \
	  pocl="--pocl $$(echo "$$pocl" | tail -n 4)" || { pocl=; echo "without PoCL: no program of OpenCL is measured"; }; \
	  criu=$$($(LAB) criu) && criu="--criu $$(echo "$$criu" | tail -n 1)" || { criu=; echo "without CRIU: no move is measured"; }; \
	  $(PYTHON) -m benchmarks.bench_rgpu --programs $${program%/*} $$pocl $$criu $(if $(JSON),--json $(JSON))

bench: venv  ## run all benchmarks
	@set -e; for bench in benchmarks/bench_*.py; do name=$${bench#benchmarks/bench_}; name=$${name%.py}; \
	  $(MAKE) --no-print-directory bench-$${name//_/-}; done

SBOM := $(or $(NUMA_EXT_LAB),.lab)/sbom
EXTRA ?= agent
sbom:  ## write sbom-EXTRA.json (CycloneDX): all that pip installs with an extra (EXTRA=agent)
	rm -rf $(SBOM)
	python3 -m venv $(SBOM)/installed && python3 -m venv $(SBOM)/tool
	$(SBOM)/installed/bin/pip install -q '.[$(EXTRA)]'
	$(SBOM)/tool/bin/pip install -q 'cyclonedx-bom>=7,<8'
	env -u PYTHONPATH $(SBOM)/tool/bin/cyclonedx-py environment --output-file sbom-$(EXTRA).json $(SBOM)/installed/bin/python

clean:  ## end everything the lab started and remove all that is made here
	$(LAB) clean
	find . -name .git -prune -o \( -name __pycache__ -o -name '*.egg-info' -o -name '*.py[co]' \) -prune -exec rm -rf {} +
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .stestr .tox
	rm -rf .eggs build emulation/build dist sbom-*.json AUTHORS ChangeLog doc/build doc/source/reference/api
	cd debian && rm -rf ../.pybuild .debhelper *.debhelper *.debhelper.log *.substvars debhelper-build-stamp files \
	  go-cache link man numa-ext-rgpu numa-ext-rgpu-guest numa-ext-rgpu-slice numa-host-agent numa-rgpu-bench opencl \
	  python3-nova-numa-ext tmp

distclean: clean  ## the same, and drop the download and build cache
	$(LAB) clean --cache
