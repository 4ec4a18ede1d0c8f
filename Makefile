# Everything runs in .venv; nothing needs to be installed by hand beyond python3 and Go.
PYTHON ?= python3
NODES ?= 5000
IMAGE ?= fleet-emulator
ARGS ?=
# Of pytest: each has a control plane of its own. They wait most of the time, so that two cores carry four.
WORKERS ?= 4
BIN := .venv/bin
# What a command starts ends with it, also when it is killed; tests see to that themselves.
GUARDED := $(BIN)/python tests/support/guard.py
INSTALL_CHROMIUM = apt-get install --yes --no-install-recommends chromium
FLEET_VERSION = $(shell $(BIN)/python -c 'import fleet; print(fleet.__version__)')
# Of Kubernetes, for `make sim`, `make oracle` and the tests on a control plane that is there: 1.35.
VERSION =
VERSION_NODES ?= 100
export FLEET_TEST_MINOR := $(VERSION)

.PHONY: fuzz help setup spawn test lint types unit sim programs e2e browser locust silence streams oracle rights chart chart-rbac \
	conformance bench bench-peers chromium proto proto-cri proto-plugins format clean dist dist-wheel dist-test controlplane-wheel lock image docs

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# The versions of the image's packages are those that the tests run with. pip takes no hashes with
# an editable install, so that they are left out.
.venv/.stamp: pyproject.toml charts/requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fleet needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	sed -n 's/^\([A-Za-z0-9].*==[^\\]*\).*/\1/p' charts/requirements.txt > .venv/constraints.txt
	$(BIN)/pip install --quiet --constraint .venv/constraints.txt --editable '.[dev,docs,locust]'
	touch $@

setup: .venv/.stamp  ## create .venv with everything in it

spawn: setup  ## bring up NODES virtual kubelets on a local control plane
	$(BIN)/fleet spawn --nodes $(NODES) $(ARGS)

# One core has the types while the other has the rest.
STATIC = $(MAKE) --jobs=2 --output-sync=target
check: setup  ## lint, types, contracts, unit tests, simulations and the recorded judge: before each commit
	$(STATIC) types lint
	$(MAKE) unit sim
test: setup  ## check, the site and the end-to-end tests
	$(STATIC) types lint site
	$(MAKE) unit sim e2e
.PHONY: check nightly
nightly: programs chromium  ## every test and bench that test leaves out, each in turn, with one table; ARGS='--only NAME', '--list'
	$(BIN)/python tests/support/go_program.py kubemark
	$(GUARDED) $(BIN)/python tools/nightly.py $(ARGS)
lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/codespell $$(git ls-files '*.md' '*.yaml' ':!tests/**/refused.yaml' 'fleet/*.py' 'profiles/*.py' 'tools/*.py')
types: setup
	$(BIN)/mypy
# What needs a control plane, a kubelet or a browser has the mark e2e.
unit: setup
	$(BIN)/pytest --numprocesses 2 -m 'not e2e and not slow' --ignore=tests/sim --ignore=tests/e2e tests
sim: setup
	$(BIN)/pytest --numprocesses 2 tests/sim
.PHONY: sim-long
SIM_SEEDS ?= 200
SIM_FIRST_SEED ?= $(shell date +%Y%m%d)000
sim-long: setup  ## SIM_SEEDS (200) other seeds each day for every simulation that draws its story
	@echo "seeds $(SIM_FIRST_SEED) and on, $(SIM_SEEDS) of them; again: make sim-long SIM_FIRST_SEED=$(SIM_FIRST_SEED)"
	FLEET_SIM_FIRST_SEED=$(SIM_FIRST_SEED) FLEET_SIM_SEEDS=$(SIM_SEEDS) \
		$(BIN)/pytest --numprocesses 2 -m seeded tests/sim
e2e: programs chromium  ## the real command line on real control planes, and the chart
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder -m 'e2e and not slow' -rs \
		tests/e2e tests/chart tests/versions

.PHONY: versions
versions: setup  ## what users do first, on each minor of Kubernetes that fleet builds, in one table; VERSION_NODES=1000, RECORD=1 for versions.md
	$(BIN)/python tests/support/go_program.py controlplanes
	FLEET_VERSIONS_NODES=$(VERSION_NODES) $(if $(RECORD),FLEET_VERSIONS_RECORD=1) $(BIN)/pytest -q -m e2e tests/versions
	$(if $(RECORD),$(BIN)/python tools/reference.py)

programs: setup kubelet  ## build what the tests run next to fleet: control planes, the kubelet, Helm
	$(BIN)/python tests/support/go_program.py helm outermost

.PHONY: kubelet
kubelet: setup
	$(BIN)/fleet controlplane build $(addprefix --kubernetes-version=,$(VERSION))
	$(BIN)/python tests/support/go_program.py kubelet

rights: setup  ## least RBAC in every identity, with every right taken away once, and a storm of 403s
	$(BIN)/fleet controlplane build
	$(BIN)/pytest -m '' tests/e2e/test_rights.py

chart: setup  ## the Helm chart, with every grant taken away once in every identity
	$(BIN)/fleet controlplane build
	$(BIN)/pytest -m '' tests/chart

chart-rbac: setup  ## write the chart's RBAC from the table that fleet checks
	cd tests/chart && ../../$(BIN)/python -m chart_rbac

locust: setup  ## Locust masters that quit, die, come back, and that lose a worker
	$(BIN)/fleet controlplane build
	$(BIN)/pytest -m '' tests/e2e/test_locust_master.py tests/e2e/test_dashboard.py

# About half an hour on two cores. `make unit` runs the first 220,000 of them.
fuzz: setup  ## 10 million broken inputs for the codecs and hostile pods; ARGS='--first 10000000' for others
	$(BIN)/python tests/fuzz/fuzz.py --inputs 10000000 $(ARGS)

.PHONY: chaos
CHAOS = PYTHONPATH=tests $(GUARDED) $(BIN)/python -m chaos.chaos
chaos: setup  ## ten minutes of trouble on a control plane, then nothing may be lost; SEED="1 2 3", MINUTES=2, ARGS='--full 60 --lean 140'
	$(BIN)/fleet controlplane build
	$(CHAOS) $(addprefix --seed=,$(SEED)) $(addprefix --minutes=,$(MINUTES)) $(ARGS)

.PHONY: chaos-sim
CHAOS_SEEDS ?= 500
chaos-sim: setup  ## CHAOS_SEEDS (500) stories of trouble and of changed answers, some 10 virtual minutes each
	FLEET_SIM_FIRST_SEED=$(SIM_FIRST_SEED) FLEET_SIM_SEEDS=$(CHAOS_SEEDS) $(BIN)/pytest --numprocesses 2 \
		tests/sim/test_recovery.py tests/sim/test_fuzzed_server.py tests/sim/test_static_pods_recovery.py

.PHONY: fuzz-server
FUZZ_FRAMES ?= 100000
fuzz-server: setup  ## FUZZ_FRAMES (100,000) changed frames of a server in virtual time, then of a real one; ARGS='--answers 5000'
	PYTHONPATH=tests $(BIN)/python -m chaos.fuzzed_stories --answers=$(FUZZ_FRAMES)
	$(BIN)/fleet controlplane build
	PYTHONPATH=tests $(GUARDED) $(BIN)/python -m chaos.fuzzed $(ARGS)

.PHONY: soak
SOAK ?= 1h
soak: setup  ## SOAK (1h) of churn on 2,000 nodes: memory, descriptors, tasks, timers stay flat; ARGS='--nodes 200'
	$(BIN)/fleet controlplane build
	PYTHONPATH=tests $(GUARDED) $(BIN)/python -m chaos.soak --duration=$(SOAK) $(ARGS)

silence: setup  ## a connection that falls silent, with the times that kubelets have
	$(BIN)/fleet controlplane build
	$(BIN)/pytest -m slow tests/e2e/test_connections.py

streams: setup  ## 400 sessions with one kubelet at once, 50 of which nobody reads
	$(BIN)/fleet controlplane build
	$(BIN)/pytest -m slow tests/e2e/test_many_streams.py

# Debian's package, where this is root; elsewhere the browser test is skipped, and this says so.
chromium:
	@command -v chromium || command -v chromium-browser || command -v google-chrome \
		|| { test "$$(id -u)" = 0 && { $(INSTALL_CHROMIUM) || { apt-get update && $(INSTALL_CHROMIUM); }; }; } \
		|| echo 'THE BROWSER TEST IS NOT RUN: no Chromium, and only root can install it (apt-get install chromium)'

browser: setup chromium  ## steer a run from a real browser; installs Debian's Chromium if there is none
	$(BIN)/fleet controlplane build
	$(BIN)/pytest tests/e2e/test_browser.py

.PHONY: oracle-short
oracle-short: kubelet  ## the half of it that has no long waits: three minutes
	$(BIN)/pytest -rs tests/oracle/test_oracle.py -k short

.PHONY: oracle-recorded oracle-record
oracle-recorded: setup  ## what a real kubelet did in recorded scenes, against a node in virtual time: seconds, part of `make check`
	$(BIN)/pytest tests/oracle/test_recorded.py

oracle-record: export FLEET_ORACLE_RECORD = 1
oracle-record: oracle  ## `make oracle`, and what the real kubelet did replaces tests/oracle/recorded

oracle: kubelet  ## a node next to a real kubelet that lives in the same simulated world; needs root; VERSION=1.35
	$(BIN)/pytest -rs --numprocesses 3 --dist loadgroup --no-loadscope-reorder \
		tests/oracle

.PHONY: faults
faults: setup  ## what fails on machines, links and a run's own control plane, Nodes of others, and all scenarios, on real control planes
	$(BIN)/fleet controlplane build
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder -rs \
		tests/e2e/test_node_faults.py tests/e2e/test_machine_faults.py tests/e2e/test_scenarios.py \
		tests/e2e/test_managed_nodes.py tests/e2e/test_faults.py \
		tests/e2e/test_terminating_pods.py

.PHONY: forecast
FORECAST_NODES ?= 1000
forecast: setup  ## what --dry-run says of FORECAST_NODES (1000) nodes, held against what the API server counts; half an hour
	$(BIN)/fleet controlplane build
	FLEET_FORECAST_NODES=$(FORECAST_NODES) $(BIN)/pytest -rP tests/e2e/test_forecast.py

.PHONY: metrics-server
metrics-server: setup  ## the real metrics-server scrapes 500 nodes, and an autoscaler acts on what it says
	$(BIN)/fleet controlplane build
	$(BIN)/python tests/support/go_program.py metrics-server
	$(BIN)/pytest tests/metrics_server

conformance: setup  ## the Kubernetes project's own tests of its workload controllers
	$(BIN)/fleet controlplane build
	$(GUARDED) $(BIN)/python tests/conformance/conformance.py $(ARGS)

bench: setup  ## measure 5,000 nodes in both fidelities
	$(GUARDED) $(BIN)/python -m bench

bench-peers: setup  ## KWOK and 20 nodes of kubemark next to fleet, in turns; ARGS='--nodes 1000 --rounds 3'; two hours
	$(BIN)/fleet controlplane build
	$(BIN)/python tests/support/go_program.py kwok
	$(GUARDED) $(BIN)/python -m bench.peers $(ARGS)

.PHONY: bench-ceiling
bench-ceiling: setup  ## how far fleet itself goes, at a sink in place of an API server; ARGS='--fidelity kubelet'
	$(GUARDED) $(BIN)/python -m bench.ceiling $(ARGS)

.PHONY: bench-gate
bench-gate: setup  ## cost of a renewal, a node, a pod and a start against the last release; red if 10 % worse
	$(GUARDED) $(BIN)/python -m bench.gate $(ARGS)

.PHONY: bench-slopes
bench-slopes: setup  ## what a node costs, from 1,000 nodes to 20,000, with a plot; half an hour
	$(GUARDED) $(BIN)/python -m bench.ceiling --out runs/ceiling-light.json
	$(GUARDED) $(BIN)/python -m bench.ceiling --fidelity kubelet --spawn=--no-agents \
		--sizes 1000,2500,5000,10000 --out runs/ceiling-kubelet.json
	$(BIN)/python -m bench.slopes runs/ceiling-light.json runs/ceiling-kubelet.json \
		--plot docs/images/slopes.svg

dist: setup  ## everything that a release needs, into dist/
	$(BIN)/python tools/release.py

dist-wheel: setup  ## of it only what the image needs
	$(BIN)/python tools/release.py --without-controlplane

dist-test: dist  ## install what is in dist/ into clean environments and run it from there
	$(BIN)/pytest tests/installed

controlplane-wheel: setup  ## the control plane's programs as a wheel, for machines without Go or network
	$(BIN)/fleet controlplane build
	$(BIN)/python tools/controlplane_wheel.py dist

.PHONY: base-digest
base-digest:
	@echo '$(BASE_DIGEST)' | grep -Eqx 'sha256:[0-9a-f]{64}' || { \
		echo "make image needs BASE_DIGEST=sha256:..., the digest of its base image, as this command prints it:"; \
		echo "  docker buildx imagetools inspect docker.io/library/python:3.13-slim --format '{{.Manifest.Digest}}'"; \
		exit 2; } >&2

image: base-digest dist-wheel  ## build the container image of BASE_DIGEST=sha256:..., tagged with its version
	docker build --file charts/Dockerfile --tag $(IMAGE):$(FLEET_VERSION) --build-arg BASE_DIGEST=$(BASE_DIGEST) \
		--build-arg VERSION=$(FLEET_VERSION) --build-arg REVISION=$$(git rev-parse HEAD) .

.PHONY: pythons
pythons: setup  ## unit tests and simulations on each Python from 3.11 on, in one table; ARGS='--only 3.13'
	$(BIN)/python tools/pythons.py $(ARGS)

.PHONY: new-release
new-release: setup  ## pin a release of Kubernetes, V=v1.38.0, and print what changed in its kubelet
	$(BIN)/python tools/new_release.py $(V)

docs: setup  ## write the reference pages that the code says: command line, keys of the YAML files
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/grafana.py

.PHONY: site
site: setup  ## build the documentation as a site in site/, with its links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

.PHONY: picture
picture: setup chromium  ## make the pictures of the pages, in a quarter of an hour; ONLY=report, dashboard, capacity or a RUN_DIR makes one
	$(BIN)/python tools/picture.py $(ONLY)

.PHONY: report-outage
REPORT_NODES ?= 2000
report-outage: setup chromium  ## a zone of REPORT_NODES (2000) nodes goes dark; its report in a browser, kept in runs/report-outage
	$(BIN)/fleet controlplane build
	FLEET_REPORT_NODES=$(REPORT_NODES) FLEET_REPORT_SHOTS=$(CURDIR)/runs/report-outage \
		$(BIN)/pytest -m slow tests/e2e/test_run_reports.py -k zone_outage

lock:  ## resolve charts/requirements.txt again: what the image and .venv have; ARGS=--upgrade for the newest
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile $(ARGS) --quiet --universal --python-version 3.11 --extra locust --generate-hashes --no-annotate \
		--custom-compile-command 'make lock' --output-file charts/requirements.txt pyproject.toml

proto: setup  ## compile fleet/wire/api/proto/*.proto, after a change to them
	$(BIN)/python -m grpc_tools.protoc --proto_path fleet/wire/api/proto \
		--descriptor_set_out fleet/wire/api/proto/kubernetes.binpb pod_spec.proto objects.proto views.proto

# Of the default release.
MODFILE = -modfile=$$(cd ../../.. && $(BIN)/python -c 'import fleet; print(fleet.KUBERNETES_VERSION)').mod
PLUGIN_APIS = $(shell cd fleet/controlplane/go && go list -m $(MODFILE) -f '{{.Dir}}/pkg/apis' k8s.io/kubelet)
CSI_SPEC = $(shell cd fleet/controlplane/go && go list -m $(MODFILE) -f '{{.Dir}}' github.com/container-storage-interface/spec)
proto-plugins: setup  ## compile the protos of kubelets' plug-ins for tests/oracle, after a change of Kubernetes' version
	$(BIN)/python -m grpc_tools.protoc --include_imports --proto_path $(PLUGIN_APIS) --proto_path $(CSI_SPEC) \
		--descriptor_set_out tests/oracle/plugins/plugins.binpb csi.proto deviceplugin/v1beta1/api.proto \
		pluginregistration/v1/api.proto dra/v1/api.proto dra-health/v1alpha1/api.proto

CRI_API = $(shell cd fleet/controlplane/go && go list -m $(MODFILE) -f '{{.Dir}}' k8s.io/cri-api)
proto-cri: setup  ## compile CRI's own proto for tests/oracle, after a change of Kubernetes' version
	$(BIN)/python -m grpc_tools.protoc --proto_path $(CRI_API)/pkg/apis/runtime/v1 \
		--descriptor_set_out tests/oracle/cri/runtime_v1.binpb api.proto


format: setup  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what make created here
	rm -rf .venv dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis runs
