# Two commands matter: make demo, make test. make help lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: demo test build setup lint bench hooks clean help

# .ci/setup.sh leaves the Go that it found or installed here; go.mod says which toolchain that one fetches.
export PATH := $(CURDIR)/build/toolchain:$(PATH)
export GOTOOLCHAIN := auto
# lavapipe wants a folder for its sockets.
export XDG_RUNTIME_DIR ?= $(or $(TMPDIR),/tmp)

demo: build ## train a small model on real text, then sample from it (under 15 minutes on 2 cores without a GPU)
	bin/gpupipe train examples/demo/config.yaml --resume
	bin/gpupipe generate runs/demo --prompt "In the beginning"

test: setup lint ## the whole test suite, after vet
	go test -timeout 20m ./...

build: setup ## bin/gpupipe
	go build -buildvcs=false -o bin/gpupipe ./cmd/gpupipe

setup: ## install what is missing: a C compiler, Go, a Vulkan driver, text
	@.ci/setup.sh

lint: setup ## gofmt and vet
	@unformatted=$$("$$(go env GOROOT)/bin/gofmt" -l .); [ -z "$$unformatted" ] || { echo "not gofmt'ed: $$unformatted" >&2; exit 1; }
	go vet ./...

bench: build ## kernels and a whole step, timed on this machine's device
	bin/gpupipe bench

hooks: ## build the example WebAssembly hooks again (.ci/hooks.sh says what it takes)
	@.ci/hooks.sh

clean: ## remove what was built (runs are kept)
	rm -rf bin build

help: ## this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14
