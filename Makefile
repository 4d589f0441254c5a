# cosky-proxy: `make run` builds and starts it, `make test` proves it, `make help` lists the rest.

GO      ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
# VCS stamping is off because it fails in checkouts that belong to somebody else; VERSION says the same.
BUILD   := -trimpath -buildvcs=false -ldflags '-X main.version=$(VERSION)'

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

PKG      ?= ./...
ARGS     ?=
FUZZTIME ?= 200000x
REDIS    ?= redis-server

.DEFAULT_GOAL := build
.PHONY: build run test test-clients race fuzz bench bench-quick bench-compare linear soak staleness commands lint check clean help tools

build: ## build bin/cosky-proxy
	$(GO) build $(BUILD) -o bin/cosky-proxy ./cmd/cosky-proxy

run: build ## build and start on an embedded backend; ARGS='--listen :7000 --admin off' adds options
	@exec bin/cosky-proxy $(ARGS)

tools: # install redis-server and what else the tests start, where it is missing
	@test/install.sh

test: tools build ## install redis-server when it is missing, run all tests; PKG=./conf narrows
	$(GO) test -timeout 10m $(PKG)

test-clients: tools build ## drive the proxy with the client libraries of other languages
	$(GO) test -timeout 10m -count 1 -run 'Client' ./test

race: tools build ## run all tests under the race detector
	$(GO) test -race -timeout 15m $(PKG)

fuzz: ## fuzz every target for FUZZTIME (200000x: that many inputs; or a time such as 1m)
	@test/fuzz.sh $(FUZZTIME)

bench: build ## measure the proxy against Redis and the proxies found here (20 to 30 minutes); ARGS=-h explains
	@bench/install.sh
	$(GO) build -o bin/cosky-bench ./bench
	@exec env PATH="$$PATH:/usr/sbin" bin/cosky-bench $(ARGS)

bench-quick: build ## the main figures of bench in under two minutes
	@bench/install.sh
	$(GO) build -o bin/cosky-bench ./bench
	@exec env PATH="$$PATH:/usr/sbin" bin/cosky-bench -quick $(ARGS)

bench-compare: ## compare the micro-benchmarks with those of the previous commit; COMMIT= names another
	@bench/compare.sh $(COMMIT)

linear: tools ## hunt for reads that break linearizability, LONG=5m for each backend and kind of invalidation
	$(GO) test -timeout 0 -count 1 -v -run 'Linearizable|CheckerIsNotBlind' ./test/coherence -long $(or $(LONG),5m)

soak: tools ## let clients work for LONG=10m while all happens that may happen to a cluster, a Sentinel set and one Redis, side by side; ONLY=Cluster, Sentinel or OneRedis
	$(GO) test -timeout 0 -count 1 -parallel 4 -v -run '$(if $(ONLY),Soak$(ONLY),.)' ./test/soak -long $(or $(LONG),10m)

staleness: tools ## measure how old cached reads are behind writes beside the proxy, LONG=3s for each fault; prints a table
	$(GO) test -timeout 0 -count 1 -v -run 'Staleness|ProberIsNotBlind' ./test/coherence -long $(or $(LONG),3s)

commands: ## regenerate the command table from the installed Redis; REDIS='PATH PATH' names others
	$(GO) run ./router/command/gen $(foreach program,$(REDIS),-server $(program)) -o router/command/commands.tsv

lint: ## gofmt, vet (also for macOS and what only the race detector builds), staticcheck
	@files=$$(gofmt -l .); test -z "$$files" || { echo "gofmt would change:"; echo "$$files"; exit 1; }
	$(GO) vet ./...
	GOOS=darwin $(GO) vet ./...
	$(GO) vet -tags race ./...
	$(GO) run $(STATICCHECK) ./...

check: ## exactly what CI runs
	@.ci/run

clean: ## remove what make built
	rm -rf bin

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
