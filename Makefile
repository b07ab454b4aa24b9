# The tasks of this repository; "make" alone lists them. They need Go, git and make, and the tests also PostgreSQL,
# Python, Node.js and Chromium.

# The same flags everywhere, so that one cache of compiled packages serves all targets: the pure-Go SQLite
# takes longer to compile than everything else together.
export CGO_ENABLED := 0
VCS := $(shell git rev-parse HEAD >/dev/null 2>&1 && echo auto || echo false)
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -buildvcs=$(VCS))

GO    ?= go
V     ?=
SEED  ?=
SEEDS ?=
KILLS ?= 500
POWER ?= 5000
RESTARTS ?= 40
# Seeds of the simulator in "make test". "make test-long" has more.
SHORT_SEEDS := 8

verbose := $(if $(V),-v)
# "go test" does not vet, because "make check" vets everything with all analyzers. Tests run with the GOGC that
# "perdure serve" sets for itself; compilers keep their own.
ONCE := -vet=off -timeout 40m -count=1 -exec 'env GOGC=400'

# Starts a private PostgreSQL for a command and stops it afterwards. Installs PostgreSQL if it is missing and the user
# may install packages. A server that PERDURE_TEST_POSTGRES names is used instead.
WITH := $(GO) run ./internal/testkit/pgtest/with --
# The same with its data in memory, where a sync costs nothing. It is for tests. Tests of crashes and power losses
# start servers and file systems of their own, and measurements and campaigns use the disk.
WITH_MEMORY := $(GO) run ./internal/testkit/pgtest/with -memory --
# The number of packages that are tested at once: one more than there are processors, because tests often wait for
# processes, leases and other nodes. "make test P=1" is for a machine with little memory.
P ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Packages whose tests run a second time with PostgreSQL as the store. Tests of agenttest choose their store themselves.
STORED := ./internal/server/httpd ./internal/server/watchdog ./embedded ./client ./worker ./agent
# Tests of these packages mostly wait: on a shared store a change of a webhook takes over a second. So more of them
# run at once.
WAITING := 4

# Packages that run under the race detector: those with several goroutines. The conformance suite and the simulator
# use one goroutine. The domain and the store's packages scan and backup start none, nor do their tests. SQLite is
# translated C with locks of its own; it is not instrumented, which saves much time and hides no race of this
# repository. The NATS server is instrumented, although it is a process of its own: the linker could otherwise take a
# generic function of the standard library from it without the detector's calls, and report false races.
RACE := ./internal/server/store ./internal/server/store/pg ./internal/server/store/sqlite ./internal/server/engine/... ./internal/server/watchdog ./internal/server/doorbell ./internal/server/webhook ./internal/server/httpd ./internal/server/httpd/waiting ./embedded ./client ./worker ./agent ./agenttest
RACEFLAGS := -race '-gcflags=modernc.org/...=-race=false'
# The packages whose files depend on the tag plant. Others see the same declarations, and are vetted without it.
PLANTED := ./internal/server/plant ./sim
# Packages with agents, whose code has to follow the rules of docs/vet.md. Tests that break one on purpose say so in a comment.
AGENTS := ./examples/... ./agent ./agenttest ./supervisor/...
# The detector needs a C compiler. Without one the target fails, instead of passing without the detector.
CC_FOUND := $(shell CGO_ENABLED= $(GO) env CGO_ENABLED)

.DEFAULT_GOAL := help
.PHONY: clients sdks commits chaos peers help build program bench-program test test-all test-plain test-postgres test-race test-long services python3 typescript chromium promtool deployment ui ui-packages generated planted demo check sim docs vectors bench microbench campaign compile compile-plain compile-race compile-rest clean

help: ## print this list
	@echo "make <target>"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "make sim SEED=123 replays one seed; make sim SEEDS=500 runs that many; make test V=1 names every test."

build: program bench-program ## compile bin/perdure and bin/perdure-bench

program:
	$(GO) build -ldflags="-s -w" -o bin/perdure ./cmd/perdure

bench-program:
	$(GO) build -ldflags="-s -w" -o bin/perdure-bench ./cmd/perdure-bench

# A stage prints its name, and how long it took.
STAGE := @.ci/stage

test: python3 typescript clients chromium ## run every test, on SQLite, PostgreSQL and NATS: before every push
	$(STAGE) compile $(MAKE) --no-print-directory compile-plain
	$(STAGE) test $(MAKE) --no-print-directory test-plain
	$(STAGE) postgres $(MAKE) --no-print-directory test-postgres

test-all: test ## the same, then the race detector, planted faults and the long forms
	$(STAGE) race $(MAKE) --no-print-directory test-race
	$(STAGE) planted $(MAKE) --no-print-directory planted
	$(STAGE) long $(MAKE) --no-print-directory test-long

# The package that takes longest is named first: as one of the last it would run alone in the end.
test-plain: python3 typescript clients chromium
	PERDURE_SIM_SEEDS=$(or $(SEEDS),$(SHORT_SEEDS)) $(WITH_MEMORY) $(GO) test $(verbose) $(ONCE) -p $(P) -skip "$$(.ci/left-out Long)" \
		./internal/testkit/conformance ./...

test-postgres: python3
	PERDURE_TEST_STORE=postgres $(WITH_MEMORY) $(GO) test $(verbose) $(ONCE) -p $(WAITING) -skip "$$(.ci/left-out NoStore)" $(STORED)

test-race:
ifeq ($(CC_FOUND),1)
	$(WITH_MEMORY) env CGO_ENABLED=1 $(GO) test $(verbose) $(RACEFLAGS) $(ONCE) -short -skip "$$(.ci/left-out NoRace)" $(RACE)
else
	@echo "NOT RUN: the race detector needs a C compiler, and there is none here"
endif

# The tests with the mark Long, and the long forms of tests whose short forms are in test-plain: many kills, many power
# losses, and so many seeds of the simulator that the campaign can be checked for the situations and pairs that it has
# to reach. The packages of LASTING have tests with the mark. One is tested at a time: fleets under faults want processors.
LONG := TestPowerLoss|TestKillsUnderLoad|TestKillDuringGroup|TestKillAroundLast
LASTING := ./e2e ./e2e/chaos ./sdk/typescript ./sdk/python
test-long: python3 typescript clients chromium
	$(WITH_MEMORY) $(GO) test $(verbose) $(ONCE) -p 1 -run "$$(.ci/left-out Long)" $(LASTING)
	PERDURE_SIM_SEEDS=$(or $(SEEDS),250) $(WITH_MEMORY) $(GO) test $(verbose) $(ONCE) ./sim -run 'TestSeeds|TestBothStores'
	PERDURE_SIM_SEEDS=$(or $(SEEDS),40) $(GO) test $(verbose) $(ONCE) ./sim -run 'TestRunsGoOnAnew|TestFlowControl'
	PERDURE_KILLS=50 PERDURE_POWER_LOSSES=200 $(WITH_MEMORY) $(GO) test $(verbose) $(ONCE) ./e2e -run '$(LONG)'

# Installs the services that tests need, and checks that they start.
services: python3 typescript clients ui-packages chromium promtool
	$(WITH) true

# Installs a program if it is missing and the user may install packages. Waits for other installations to finish,
# also of another clone, and tries a failed download again.
APT := apt-get -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300
install = command -v $(1) >/dev/null || { test "$$(id -u)" = 0 && flock /var/cache/apt/perdure.lock sh -c \
	'command -v $(1) >/dev/null || { $(APT) update && DEBIAN_FRONTEND=noninteractive $(APT) install -y --no-install-recommends $(1); }'; }

# The worker in Python is tested with a real interpreter.
python3:
	@$(call install,python3) || \
		{ echo "python3 is missing, and its example can't be tried: apt-get install python3"; exit 1; }

# The packages of the SDKs, made without network. Nothing is published.
sdks: python3 typescript ## make the packages of the SDKs: a wheel, and one for npm
	python3 sdk/python/build_wheel.py sdk/python/dist
	mkdir -p $(SDKTS)/dist/package && cd $(SDKTS) && npm pack --silent --offline --pack-destination dist/package

# The worker in TypeScript is compiled, and tested with a real Node.js. Debian's npm depends on Node.js.
TS := examples/typescript
typescript:
	@$(call install,npm) || \
		{ echo "npm is missing, and the worker in TypeScript can't be compiled: apt-get install npm"; exit 1; }
	@$(MAKE) --no-print-directory $(TS)/dist/worker.js $(SDKTS)/dist/src/index.js $(SDKTS)/runtime/node_modules/.package-lock.json \
		$(AISDK)/node_modules/.types $(OPENAIAGENTS)/node_modules/.types

$(TS)/node_modules/.package-lock.json: $(TS)/package.json $(TS)/package-lock.json
	cd $(TS) && npm ci --no-audit --no-fund --fetch-retries=5 && touch node_modules/.package-lock.json

$(TS)/dist/worker.js: $(TS)/node_modules/.package-lock.json $(TS)/tsconfig.json $(wildcard $(TS)/*.ts)
	cd $(TS) && rm -rf dist && npm run --silent build

# The SDK for TypeScript is compiled, and tested with each version of Node.js that it supports. These come by npm.
SDKTS := sdk/typescript
$(SDKTS)/node_modules/.package-lock.json: $(SDKTS)/package.json $(SDKTS)/package-lock.json
	cd $(SDKTS) && npm ci --no-audit --no-fund --fetch-retries=5 && touch node_modules/.package-lock.json

$(SDKTS)/dist/src/index.js: $(SDKTS)/node_modules/.package-lock.json $(SDKTS)/tsconfig.json $(wildcard $(SDKTS)/src/*.ts $(SDKTS)/test/*.ts)
	cd $(SDKTS) && rm -rf dist && npm run --silent build

$(SDKTS)/runtime/node_modules/.package-lock.json: $(SDKTS)/runtime/package.json $(SDKTS)/runtime/package-lock.json
	cd $(SDKTS)/runtime && npm ci --no-audit --no-fund --fetch-retries=5 && touch node_modules/.package-lock.json

# Checks the types of an example, when it or the SDK has changed: reading the types of its packages takes long.
TYPES := ../../$(SDKTS)/node_modules/.bin/tsc --noEmit --strict --skipLibCheck --allowImportingTsExtensions \
	--module nodenext --target es2023 --lib es2023,dom,dom.asynciterable --types node \
	--typeRoots ../../$(SDKTS)/node_modules/@types agent.ts

# The example with the AI SDK is executed as it is written: Node.js 22 leaves the types out.
AISDK := examples/ai-sdk
$(AISDK)/node_modules/.package-lock.json: $(AISDK)/package.json $(AISDK)/package-lock.json
	cd $(AISDK) && npm ci --no-audit --no-fund --ignore-scripts --fetch-retries=5 && touch node_modules/.package-lock.json

$(AISDK)/node_modules/.types: $(AISDK)/node_modules/.package-lock.json $(SDKTS)/dist/src/index.js $(wildcard $(AISDK)/*.ts)
	cd $(AISDK) && $(TYPES) && touch node_modules/.types

# The example with the OpenAI Agents SDK is executed in the same way.
OPENAIAGENTS := examples/openai-agents
$(OPENAIAGENTS)/node_modules/.package-lock.json: $(OPENAIAGENTS)/package.json $(OPENAIAGENTS)/package-lock.json
	cd $(OPENAIAGENTS) && npm ci --no-audit --no-fund --ignore-scripts --fetch-retries=5 && touch node_modules/.package-lock.json

$(OPENAIAGENTS)/node_modules/.types: $(OPENAIAGENTS)/node_modules/.package-lock.json $(SDKTS)/dist/src/index.js $(wildcard $(OPENAIAGENTS)/*.ts)
	cd $(OPENAIAGENTS) && $(TYPES) && touch node_modules/.types

# The clients of others, which the doors are tested with, and the Node.js that they need. The versions are exact.
CLIENTS := e2e/clients
clients:
	@$(call install,npm) || \
		{ echo "npm is missing, and the doors can't be tested with the clients of others: apt-get install npm"; exit 1; }
	@$(MAKE) --no-print-directory $(CLIENTS)/node_modules/.package-lock.json

$(CLIENTS)/node_modules/.package-lock.json: $(CLIENTS)/package.json $(CLIENTS)/package-lock.json
	cd $(CLIENTS) && npm ci --no-audit --no-fund --fetch-retries=5 && touch node_modules/.package-lock.json

# The dashboard has no build. If npm is installed, its types are checked, and tests check its pages with axe-core.
UI := ui
$(UI)/node_modules/.package-lock.json: $(UI)/package.json $(UI)/package-lock.json
	cd $(UI) && npm ci --no-audit --no-fund --fetch-retries=5 && touch node_modules/.package-lock.json

ui-packages:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(UI)/node_modules/.package-lock.json; fi

ui: ui-packages ## check the types of the dashboard, where npm is at hand
	@if command -v npm >/dev/null; then cd $(UI) && npm run --silent check; \
	else echo "NOT RUN: npm is missing, so the types of the dashboard are not checked"; fi

# Streams and the dashboard are tested in a real browser.
chromium:
	@$(call install,chromium) || \
		{ echo "Chromium is missing, and the streams can't be tried in a browser: apt-get install chromium"; exit 1; }

# The alert rules are tested with promtool of Debian's package prometheus. The program alone is taken out of the package,
# because an installed package starts a service.
promtool:
	@command -v promtool >/dev/null || { test "$$(id -u)" = 0 && flock /var/cache/apt/perdure.lock sh -c \
	'command -v promtool >/dev/null || { cd "$$(mktemp -d)" && $(APT) update && $(APT) download prometheus 2>/dev/null && \
	dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x -C /usr/local/bin --strip-components=3 ./usr/bin/promtool; \
	rm -rf "$$PWD"; }'; } || true

# systemd-analyze prints what is wrong and succeeds nevertheless.
deployment: promtool ## check deploy/: alert rules and the unit of systemd, where promtool and systemd-analyze are at hand
	@if command -v promtool >/dev/null; then promtool check rules deploy/alerts.yml deploy/recording.yml && \
	promtool test rules deploy/rules_test.yml; \
	else echo "NOT RUN: promtool is missing, so the alert rules are not tested"; fi
	@if command -v systemd-analyze >/dev/null; then d="$$(mktemp -d)" && \
	sed 's|/usr/local/bin/perdure|/bin/true|' deploy/perdure.service >"$$d/perdure.service" && \
	out="$$(systemd-analyze verify --man=no "$$d/perdure.service" 2>&1)"; rm -rf "$$d"; echo "deploy/perdure.service: $${out:-SUCCESS}"; test -z "$$out"; \
	else echo "NOT RUN: systemd-analyze is missing, so the unit is not checked"; fi

generated: ## generate a Go client from the OpenAPI document, compile it and call a server with it
	cd internal/tools/generated && $(GO) mod download && $(GO) test $(verbose) -count=1 ./...

planted: ## plant faults, and see the simulator find each
	$(GO) test -tags plant -vet=off ./sim -run Planted $(verbose) -count=1

demo: program ## ask an agent, stop waiting, kill the server, and see the answer come
	@bin/perdure demo

check: ui deployment ## formatting, vet, staticcheck, rules of agents, types of the dashboard, deploy/, printed docs, go.mod
	@out="$$(gofmt -l .)"; test -z "$$out" || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags plant $(PLANTED)
	$(GO) tool staticcheck ./...
	$(GO) run ./cmd/perdurevet $(AGENTS)
	$(GO) run ./internal/tools/docgen -check
	$(GO) mod tidy -diff

sim: ## run the simulator: SEEDS=500 for more, SEED=123 to replay one
ifneq ($(SEED),)
	PERDURE_SIM_SEED=$(SEED) $(GO) test ./sim -run TestReplay -v -count=1
else
	PERDURE_SIM_SEEDS=$(SEEDS) $(GO) test ./sim -run TestSeeds -v -count=1 -timeout 24h
endif

docs: ## print the pages of docs/ that come from the code, and the results that were measured
	$(GO) run ./internal/tools/docgen
	$(GO) run ./cmd/perdure-bench --results docs

vectors: ## write testdata/journal, the format of docs/journal.md in use, for libraries in other languages
	$(GO) test ./internal/testkit/vectors -count=1 -update

bench: build ## measure this machine with bin/perdure-bench; ARGS="--scenario jobs", or ARGS=-h for all flags
	bin/perdure-bench $(ARGS)

microbench: ## measure single functions: the benchmarks of Go in bench/
	$(GO) test -run '^$$' -bench . -benchtime 5s -count=1 ./bench

# Restate is measured if npm can install it. ARGS are flags of bench/peers.
PEERS = bench/peers/restate
peers: build ## measure Perdure beside River and Restate, in turns; ARGS="-rounds 5"
	@if command -v npm >/dev/null; then \
		(cd $(PEERS) && npm install --no-audit --no-fund --no-package-lock --ignore-scripts --silent); \
	else echo "npm is missing, so Restate is left out"; fi
	$(WITH) sh -c 'cd bench/peers && $(GO) run . $(ARGS) $(if $(shell command -v npm),-restate restate)'

# A fleet of real processes is disturbed for CHAOS=30m with each doorbell, and its history is checked. SEED repeats a plan.
chaos:
	PERDURE_CHAOS=$(or $(CHAOS),30m) PERDURE_SEED=$(SEED) PERDURE_EVIDENCE=$(CURDIR)/docs/evidence $(GO) test ./e2e/chaos -run TestChaos -v -count=1 -timeout 24h

ifneq ($(CHAOS),)
campaign: chaos
else
campaign: ## the long way: many seeds, planted faults, 25 000 poison runs, KILLS=500 kills of a real process, POWER=5000 power losses, RESTARTS=40 restarts of PostgreSQL in each way, a process that prints 5 GB, four tabs of the dashboard for DASHBOARD=1h, wake-ups for SOAK=1h, a fleet disturbed for 30 minutes with each doorbell; CHAOS=30m for the last alone
	PERDURE_SIM_SEEDS=$(or $(SEEDS),20000) $(GO) test ./sim -run 'TestSeeds|TestFlowControl' -v -count=1 -timeout 24h
	$(MAKE) planted V=1
	PERDURE_TEST_FULL=1 $(WITH) $(GO) test ./internal/testkit/conformance -run Poison -v -count=1 -timeout 24h
	PERDURE_EVIDENCE=$(CURDIR)/docs/evidence $(GO) test ./e2e -run 'TestFailover$$|TestRollingUpgradeAndRollback$$' -v -count=1
	PERDURE_LOCKED_SECONDS=60 $(WITH) $(GO) test ./e2e -run 'TestLockedRowsHoldUpNobodyElse$$' -v -count=1
	PERDURE_TEST_FULL=1 PERDURE_EVIDENCE=$(CURDIR)/docs/evidence $(WITH) $(GO) test ./e2e -run HostileTenants -v -count=1 -timeout 24h
	PERDURE_TEST_FULL=1 $(GO) test ./e2e -run 'TooMuchOutput|DashboardIsAccessible' -v -count=1 -timeout 24h
	PERDURE_DASHBOARD=$(or $(DASHBOARD),1h) PERDURE_EVIDENCE=$(CURDIR)/docs/evidence $(GO) test ./e2e -run 'DashboardTellsTheTruth' -v -count=1 -timeout 24h
	PERDURE_SOAK=$(or $(SOAK),1h) PERDURE_TEST_STORE=postgres $(WITH) $(GO) test ./internal/server/httpd -run NoWakeUp -v -count=1 -timeout 24h
	PERDURE_KILLS=$(KILLS) PERDURE_RESTARTS=$(RESTARTS) PERDURE_POWER_LOSSES=$(POWER) $(WITH) $(GO) test ./e2e -v -count=1 -timeout 24h
	PERDURE_TEST_FULL=1 $(GO) test ./internal/doors -run FuzzedBodies -v -count=1
	PERDURE_TEST_FULL=1 $(WITH) $(GO) test ./sdk/relay -run TestRelay -v -count=1
	PERDURE_TEST_FULL=1 $(GO) test ./sdk/typescript ./sdk/python -run TestKillAtEveryCommit -v -count=1
	$(MAKE) chaos
endif

# Compiles the packages of the other targets without running them: make -j2 compile.
compile: compile-plain compile-race compile-rest

compile-plain:
	$(GO) list -export -test -deps ./... >/dev/null

# Compiles the packages that neither "make test" nor the race detector needs: the simulator with planted faults, the
# module of the generated client, and tools.
compile-rest:
	$(GO) list -tags plant -export -test -deps $(PLANTED) >/dev/null
	cd internal/tools/generated && $(GO) list -export -test -deps ./... >/dev/null && $(GO) tool oapi-codegen -version
	$(GO) tool staticcheck -version

compile-race:
ifeq ($(CC_FOUND),1)
	CGO_ENABLED=1 $(GO) list $(RACEFLAGS) -export -test -deps $(RACE) >/dev/null
endif

# Every commit since the last release compiles. Each is checked out into a worktree of its own, which is removed.
commits: ## build every commit since the last release
	@from=$$(sed -n 's/^Commit: `\([0-9a-f]*\)`$$/\1/p' CHANGELOG.md | head -1); dir=$$(mktemp -d); \
	git worktree add -q --detach $$dir $$from && trap 'git worktree remove --force '$$dir EXIT && \
	for c in $$(git rev-list --reverse $$from..HEAD); do \
		git -C $$dir checkout -q $$c && (cd $$dir && $(GO) build ./... && $(GO) vet ./...) || { echo "$$c does not build"; exit 1; }; \
	done

clean: ## remove what was built
	rm -rf bin $(TS)/dist $(TS)/node_modules $(UI)/node_modules
