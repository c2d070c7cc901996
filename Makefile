# Two commands matter: make demo, make test. make help lists the rest. CONTRIBUTING.md explains the inner loop.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: demo test test-all test-rest suite rest lint-wasm vet staticcheck quick wasm build browser setup setup-build setup-all cross lint bench replay peers peers-lavapipe peers-generate interop darwin darwin-arm64 darwin-amd64 windows-test release site wheel wheel-test gpu-bundle gpu-bundle-test slurm-test churn homes hooks naga clean help

# .ci/setup.sh leaves the Go that it found or installed here; go.mod says which toolchain that one fetches.
export PATH := $(CURDIR)/build/toolchain:$(PATH)
export GOTOOLCHAIN := auto
# Go's compiler takes a fifth less without tables for debuggers, which no program here keeps, and a third less where it
# collects no garbage below a GiB. Some tests wait for processes or for time to pass, so two cores have three at once.
ifeq ($(findstring -dwarf=false,$(GOFLAGS)),)
export GOFLAGS := $(strip $(GOFLAGS) -gcflags=all=-dwarf=false '-toolexec=env GOGC=off GOMEMLIMIT=1GiB' \
	$(if $(filter 1 2,$(shell nproc 2>/dev/null)),-p=3))
endif
# lavapipe wants a folder for its sockets.
export XDG_RUNTIME_DIR ?= $(or $(TMPDIR),/tmp)

# The page takes a third of the time of a cold build, and the demo does without. One that is there is kept up to date.
demo: setup-build ## train a small model on real text, then sample from it (without a GPU it runs on the CPU)
	@[ ! -e pipeline/cluster/tab/page/program.wasm.gz ] || { $(PAGE); }
	$(PROGRAM)
	bin/gpupipe train examples/demo/config.yaml --resume
	bin/gpupipe generate runs/demo --prompt "In the beginning"

# lavapipe compiles kernels in half the time with vectors half as wide and without LLVM's optimization; few run long. Tests
# link in half the time without tables for debuggers. What takes longest begins first.
TESTS := LP_NATIVE_VECTOR_WIDTH=$${LP_NATIVE_VECTOR_WIDTH-128} GALLIVM_PERF=$${GALLIVM_PERF-nopt} go test -ldflags=-w -timeout 2h
LONG := cmd/tab runtime/sidecar runtime/devicetest/compute runtime/cpu runtime/vulkan runtime/webgpu cmd/gpupipe \
	shaders/matmul pipeline/runs/verify pipeline/cluster/coordinator pipeline/train/... runtime/cpu/crosstest

# make test-pipeline/engine tests one package. Rules with % do not match names with a slash.
ONE := $(filter-out test-all test-rest,$(filter test-%,$(MAKECMDGOALS)))
.PHONY: $(ONE)
$(ONE):
	$(TESTS) ./$(@:test-%=%)

# A larger heap takes less collection in linters and in tests.
test test-all test-rest suite rest lint-wasm vet staticcheck lint quick wasm $(ONE): export GOGC ?= 400

# internal/testing/tier divides the tests in two, and internal/testing/tally counts them. make test keeps its counts for
# make test-rest.
# Results of packages without such tests stay in Go's cache from one command to the other.
TALLY := go run ./internal/testing/tally
SUITE := $(TESTS) -vet=off -json
PACKAGES := $(LONG:%=./%) ./...
COUNTS := build/tests.json

test: setup ## what a user relies on: every op, backend, golden run, bits, crashes, clusters
	GPUPIPE_TESTS=core $(SUITE) $(PACKAGES) | $(TALLY) -rest "make test-all" -keep $(COUNTS)

# Many tests wait for processes and browsers, so two things run at once. vet comes first, because it fails within a minute
# and compiles what the others use. It checks more than go test would check again (-vet=off).
test-all: setup-all cross vet ## every test, with other compilers and browsers, lint, and the programs for macOS and Windows
	@$(MAKE) --no-print-directory --jobs=2 suite lint-wasm slurm-test
	@if [ -e build/zig/ziglang/zig ]; then $(DARWIN); else echo "programs for macOS are omitted: no build/zig" >&2; fi
	@for tool in wine Xvfb x86_64-w64-mingw32-gcc curl; do \
		command -v $$tool >/dev/null || { echo "the program for Windows is omitted: no $$tool" >&2; exit 0; }; done; .ci/windows-test.sh

test-rest: setup-all cross vet ## after make test: what make test-all adds to it, as continuous integration runs it
	@$(MAKE) --no-print-directory --jobs=2 rest lint-wasm

suite:
	$(SUITE) $(PACKAGES) | $(TALLY)

rest:
	left=$$($(TALLY) -left $(COUNTS)) && GPUPIPE_TESTS=rest $(SUITE) $$left | $(TALLY) -after $(COUNTS)

lint-wasm:
	@$(MAKE) --no-print-directory staticcheck
	@$(MAKE) --no-print-directory wasm

quick: ## what needs no GPU driver: gofmt, vet, staticcheck, the tests of the portable packages, smoke training (90 seconds)
	@$(VET)
	go tool staticcheck ./...
	.ci/quick.sh

# docs/RATIONALE.md says which tests run as WebAssembly, and why others do not.
WASI_TESTS := graph pipeline/checkpoint/safetensors
SHORT_WASI_TESTS := graph/autodiff graph/eval internal/strictyaml
PAGE_TESTS := runtime/webgpujs wasm/page pipeline/engine/stage
# Every build of WebAssembly trims paths, as that of the pages does, and packages that import gRPC have the tag
# grpcnotrace, as in .ci/tab.sh. So each package is compiled once.
TEST_WASM := GOARCH=wasm go test -trimpath -vet=off -short -timeout 1h

wasm: setup-all ## tests that run as WebAssembly: under wazero, and in a headless Chromium (CHROMIUM=none leaves these out)
	go build -o build/runwasm ./cmd/runwasm
	GOOS=wasip1 $(TEST_WASM) -skip '^TestImports$$' -exec "$(CURDIR)/build/runwasm wasi" $(WASI_TESTS:%=./%)
	GOOS=wasip1 $(TEST_WASM) -skip '^TestImports$$' -exec "$(CURDIR)/build/runwasm interpret" $(SHORT_WASI_TESTS:%=./%)
	[ "$${CHROMIUM:-}" = none ] || GOOS=js $(TEST_WASM) -skip '^(TestScenarios$$|TestPipelinesCompute$$|Example)' -exec "$(CURDIR)/build/runwasm browser" $(PAGE_TESTS:%=./%)

# make test-rest leaves out what takes minutes of a core, or daemons of the system: programs for macOS and Windows, and Slurm.
DARWIN = $(MAKE) --no-print-directory darwin-arm64 darwin-amd64
darwin: setup-build ## link the programs for macOS on Linux, in build/darwin, and check them as otool would (fetches ziglang from PyPI)
	@.ci/zig/setup.sh
	@$(DARWIN)

darwin-arm64 darwin-amd64:
	GOOS=darwin GOARCH=$(@:darwin-%=%) CGO_ENABLED=1 CC=$(CURDIR)/.ci/zig/cc go build -trimpath -buildvcs=false \
		-ldflags "-s -w" -o build/darwin/gpupipe-$(@:darwin-%=%) ./cmd/gpupipe
	go run ./internal/testing/machocheck build/darwin/gpupipe-$(@:darwin-%=%)

windows-test: setup ## run the program for Windows under Wine, beside this machine's (CHECKS="train kill" chooses checks; installs Wine)
	@.ci/setup.sh windows
	@.ci/windows-test.sh $(CHECKS)

# The go command fails where git refuses to read a clone of another user's, so it does not ask git. Without git there is no revision.
REVISION = $$(git describe --tags --always --dirty --abbrev=12 2>/dev/null || true)

PAGE = echo "building the page for browsers" && REVISION="$(REVISION)" .ci/tab.sh
define PROGRAM
@echo "building bin/gpupipe"
@go build -buildvcs=false -ldflags "-w -X github.com/gpupipe/gpupipe/internal/version.revision=$(REVISION)" -o bin/gpupipe ./cmd/gpupipe
endef

build: setup-build ## bin/gpupipe, with the page of gpupipe host --browser
	@$(PAGE)
	$(PROGRAM)
	@echo "bin/gpupipe is built; next: bin/gpupipe init run.yaml --data 'text/*.txt'"

browser: setup-build ## the page of examples/browser, static files in build/browser
	@.ci/browser.sh
	@echo "build/browser is built; to see it: python3 -m http.server -d build/browser, then http://localhost:8000"

setup: ## install what make test needs and is missing: a C compiler, Go, a Vulkan driver, text
	@.ci/setup.sh test

setup-all: # what make test-all needs: Vulkan's validation layer and Chromium, too
	@.ci/setup.sh all

setup-build: # what building and the demo need: neither Mesa nor Chromium
	@.ci/setup.sh build

cross: ## what tests of the CPU's kernels and of hooks need: clang, a cross compiler for ARM, an emulator (CROSS=none leaves these out)
	@[ "$${CROSS:-}" = none ] || [ "$$(uname -s)" != Linux ] || .ci/setup.sh cross

define VET
unformatted=$$("$$(go env GOROOT)/bin/gofmt" -l .); [ -z "$$unformatted" ] || { echo "not gofmt'ed: $$unformatted" >&2; exit 1; }; go vet ./...
endef

vet: setup-build
	@$(VET)

staticcheck: setup-build
	go tool staticcheck ./...
	GOOS=js GOARCH=wasm go vet -trimpath -tags=grpcnotrace $(PAGE_TESTS:%=./%) ./cmd/tab

lint: vet staticcheck ## gofmt, vet and staticcheck

bench: build ## kernels and a whole step, timed on this machine's device
	bin/gpupipe bench

replay: ## which kernels differ from those of the commit BASE (HEAD), with how the texts differ
	@.ci/replay.sh $(BASE)

# WORK is any of A, B, A-moe, B-moe, smollm2-135m; PEERS_FLAGS are those of docs/oracle/peers/peers.py. OpenBLAS's rates need libopenblas-dev.
WORK ?= A B
PRODUCTS := 1024_NN|384x1536x2048|odd_1003x100x96|down_NT|dx_NN
peers: build ## compare speed with PyTorch, JAX and OpenBLAS on an idle CPU (development only: fetches 3 GB from PyPI)
	[ -x build/peers/venv/bin/python ] || python3 -m venv build/peers/venv
	build/peers/venv/bin/pip install --quiet --disable-pip-version-check -r docs/oracle/peers/requirements.txt
	build/peers/venv/bin/python docs/oracle/peers/peers.py --works $(WORK) $(PEERS_FLAGS)
	@echo "ratio of OpenBLAS's time to the kernel's, and both in microseconds:"
	go test ./shaders/matmul -run '^$$' -bench 'Native/($(PRODUCTS))/threads=2$$' -benchtime 1x

# Needs Rust, Node.js and Mesa's lavapipe. PEERS_FLAGS are those of docs/oracle/peers/adapters.py.
peers-lavapipe: build ## compare speed with meganeura, burn, jax-js and TensorFlow.js on lavapipe (development only: fetches crates and packages of npm)
	[ -x build/peers/venv/bin/python ] || python3 -m venv build/peers/venv
	build/peers/venv/bin/pip install --quiet --disable-pip-version-check numpy==2.4.6 safetensors==0.8.0
	build/peers/venv/bin/python docs/oracle/peers/adapters.py $(PEERS_FLAGS)

# Needs Node.js.
peers-generate: build ## compare the speed of generating with llama.cpp on an idle CPU (development only: fetches 300 MB from npm and PyPI)
	[ -x build/peers/venv/bin/python ] || python3 -m venv build/peers/venv
	build/peers/venv/bin/pip install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.4.6 safetensors==0.8.0
	npm install --silent --ignore-scripts --prefix build/peers/llama node-llama-cpp@3.22.1
	build/peers/venv/bin/python docs/oracle/peers/generate.py $(PEERS_FLAGS)

# Needs Python 3.11. INTEROP_FLAGS are those of docs/oracle/interop/interop.py. One environment per version of its requirements.
INTEROP_VENV = build/interop/venv-$$(sha256sum docs/oracle/interop/requirements.txt | cut -c 1-12)
MISTRAL_VENV = build/interop/mistral-$$(sha256sum docs/oracle/interop/requirements-mistral.txt | cut -c 1-12)
interop: build ## check models, data and files against other programs (development only: fetches 3 GB from PyPI and npm)
	[ -x $(INTEROP_VENV)/bin/python ] || python3 -m venv $(INTEROP_VENV)
	$(INTEROP_VENV)/bin/pip install --quiet --disable-pip-version-check -r docs/oracle/interop/requirements.txt
	[ -x $(MISTRAL_VENV)/bin/python ] || python3 -m venv $(MISTRAL_VENV)
	$(MISTRAL_VENV)/bin/pip install --quiet --disable-pip-version-check -r docs/oracle/interop/requirements-mistral.txt
	npm install --silent --ignore-scripts --prefix build/interop/llama node-llama-cpp@3.22.1
	npm install --silent --ignore-scripts --prefix build/interop/ranks gpt-tokenizer@4.0.0
	NODE_PACKAGES=$(CURDIR)/build/interop/llama TIKTOKEN_RANKS=$(CURDIR)/build/interop/ranks/node_modules/gpt-tokenizer/data \
		MISTRAL_PYTHON=$(CURDIR)/$(MISTRAL_VENV)/bin/python $(INTEROP_VENV)/bin/python docs/oracle/interop/interop.py $(INTEROP_FLAGS)

release: setup-build ## release archives in build/release, for the targets whose C compilers are here (fetches goreleaser and, for macOS, ziglang)
	.ci/release.sh

site: ## the documentation as a site in build/site (development only: fetches Sphinx from PyPI)
	[ -x build/site-venv/bin/python ] || python3 -m venv build/site-venv
	build/site-venv/bin/pip install --quiet --disable-pip-version-check -r .ci/site/requirements.txt
	build/site-venv/bin/sphinx-build -q -W --keep-going -c .ci/site -d build/site-cache . build/site
	@echo "build/site is built; to see it: python3 -m http.server -d build/site, then http://localhost:8000"

wheel: setup-build ## Python wheels with the program inside, for the targets that this machine has a C compiler for
	@$(PAGE)
	@.ci/wheel.sh

wheel-test: wheel ## install the wheel of this machine in a clean environment, train, uninstall; PYTHONS=... names interpreters
	@.ci/wheel-test.sh $(PYTHONS)

gpu-bundle: setup ## one archive that reports on the GPU of a bare Linux machine: docs/GPU-REPORT.md
	@.ci/gpu-bundle.sh

gpu-bundle-test: gpu-bundle ## run that archive where there is nothing but a shell and lavapipe (root, or user namespaces)
	@.ci/gpu-bundle-test.sh

slurm-test: setup-build ## examples/cluster/gpupipe.sbatch under a real Slurm on this machine (root; installs Debian's slurm-wlm and munge)
	$(PROGRAM)
	@.ci/slurm-test.sh

churn: setup ## replicas whose members and coordinator are killed, stand still, leave and join, 25 times in each of four runs
	GPUPIPE_CHURN=25 $(TESTS) ./cmd/gpupipe -run TestReplicasLearnTheSameUnderChurn -v

homes: setup ## how fast two machines of one core each train over an emulated home link, against one of them
	GPUPIPE_HOMES=3 $(TESTS) ./cmd/gpupipe -run TestTwoHomesBesideOne -v

hooks: ## build the example WebAssembly hooks again (.ci/hooks.sh says what it takes)
	@.ci/hooks.sh

naga: ## build the translator of shaders again, shaders/spirv/naga (needs Rust 1.95)
	@.ci/naga.sh

clean: ## remove what was built (runs are kept)
	rm -rf bin build

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo 'make test-DIR         the tests of one package, such as make test-pipeline/engine'
