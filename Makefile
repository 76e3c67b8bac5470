# `make demo` runs a demonstration, `make test` runs the tests. `make help` lists all targets.

PREFIX ?= /usr/local
DESTDIR ?=
CC ?= cc
CFLAGS ?= -O2 -g

TARGET := $(CURDIR)/target
# It has the layout of an installation, so that target/weir/bin/weir finds its library by the same rule.
STAGE := $(TARGET)/weir

# Cargo's default, set here because the rules below use it, whatever the caller's environment has.
export CARGO_TARGET_DIR := $(TARGET)
WARN := -Wall -Wextra -Werror

.PHONY: help demo build bin lib tools test test-all soak conformance lab-figures lint install uninstall clean
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Install missing packages, build, and run perftest over Weir beside iperf3
	@scripts/need.sh demo
	@$(MAKE) --no-print-directory build
	@if [ "$$(id -u)" != 0 ]; then echo "Not root: no network namespaces; the demonstration runs on loopback."; fi
	$(STAGE)/bin/weir demo

build: bin lib tools ## Build all into target/weir

bin:
	cargo build --release -p weir-cli
	install -D $(TARGET)/release/weir $(STAGE)/bin/weir

lib: ## Build libibverbs.so.1 alone
	cargo build --release -p weir-verbs
	crates/verbs/link.sh $(TARGET)/release $(STAGE)

# Weir's C programs beside the adapter: weir-verify checks every byte, weir-odp measures paging, weir-micro is the
# papers' micro-benchmark, weir-crowd is many processes at once.
tools: $(STAGE)/lib/weir/weir-verify $(STAGE)/lib/weir/weir-odp $(STAGE)/lib/weir/weir-micro $(STAGE)/lib/weir/weir-crowd

$(STAGE)/lib/weir/weir-%: tests/c/%.c $(wildcard tests/c/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(WARN) -o $@ $< -libverbs

test: ## Install the packages that tests need, build, and run all tests
	@scripts/need.sh test
	@$(MAKE) --no-print-directory build
	WEIR_LIB_DIR=$(STAGE)/lib/weir scripts/test.py
	tests/conformance/run.py --strict

test-all: ## As `make test`, with every option of perftest in every network setup
	@E2E_MATRIX=whole $(MAKE) --no-print-directory test

soak: ## Look for rare failures: many random cases, races, ping-pongs, and fuzzing; takes hours
	@scripts/need.sh test
	@$(MAKE) --no-print-directory build
	WEIR_LIB_DIR=$(STAGE)/lib/weir scripts/soak.sh

conformance: ## Run rdma-core's Python suite on Weir, and list passed, failed and skipped tests
	@scripts/need.sh conformance
	@$(MAKE) --no-print-directory lib
	tests/conformance/run.py --strict

lab-figures: bin ## Run the laboratory's experiments on the simulator, and write their figures to docs/lab
	$(STAGE)/bin/weir lab run all --sim --markdown --out docs/lab

lint: ## Check formatting, lints, words, README's test count, circles of files, and IBTA clauses of the protocol's rules
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/clauses.py
	scripts/words.py
	scripts/rules.py
	scripts/circles.py
	tests/conformance/run.py --readme

install: build ## Install under PREFIX (default /usr/local), with DESTDIR before it
	install -D -m 755 $(STAGE)/bin/weir $(DESTDIR)$(PREFIX)/bin/weir
	install -D -m 755 $(STAGE)/lib/weir/libibverbs.so.1 $(DESTDIR)$(PREFIX)/lib/weir/libibverbs.so.1
	install -D -m 755 $(STAGE)/lib/weir/plain/libibverbs.so.1 $(DESTDIR)$(PREFIX)/lib/weir/plain/libibverbs.so.1
	install -D -m 755 $(STAGE)/lib/weir/weir-verify $(DESTDIR)$(PREFIX)/lib/weir/weir-verify
	install -D -m 755 $(STAGE)/lib/weir/weir-odp $(DESTDIR)$(PREFIX)/lib/weir/weir-odp
	install -D -m 755 $(STAGE)/lib/weir/weir-micro $(DESTDIR)$(PREFIX)/lib/weir/weir-micro
	install -D -m 755 $(STAGE)/lib/weir/weir-crowd $(DESTDIR)$(PREFIX)/lib/weir/weir-crowd
	install -D -m 644 contrib/weir.lua $(DESTDIR)$(PREFIX)/share/weir/weir.lua

uninstall: ## Remove the files of `make install`
	rm -f $(DESTDIR)$(PREFIX)/bin/weir
	rm -rf $(DESTDIR)$(PREFIX)/lib/weir $(DESTDIR)$(PREFIX)/share/weir

clean: ## Remove all build output
	rm -rf $(TARGET)
