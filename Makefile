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

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)
DIST := $(TARGET)/dist
# What distributable files are called, and the tarball's folder.
RELEASE := weir-$(VERSION)-$(MACHINE)

.PHONY: help demo build bin lib edge fabric tools share dist deb test test-all test-interop test-packages test-examples test-strangers test-applications test-ci fuzz sanitize soak conformance lab-figures lint install install-built uninstall clean
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Install missing packages, build, and run perftest over Weir beside iperf3
	@scripts/need.sh demo
	@$(MAKE) --no-print-directory build
	@if [ "$$(id -u)" != 0 ]; then echo "Not root: no network namespaces; the demonstration runs on loopback."; fi
	$(STAGE)/bin/weir demo

build: bin lib edge fabric tools share ## Build all into target/weir

bin:
	cargo build --release -p weir-cli
	install -D $(TARGET)/release/weir $(STAGE)/bin/weir

lib: ## Build libibverbs.so.1 and the layer of `weir doctor`
	cargo build --release -p weir-verbs
	crates/verbs/link.sh $(TARGET)/release $(STAGE)
	cargo build --release -p weir-layer
	install -D $(TARGET)/release/libweir_layer.so $(STAGE)/lib/weir/libweir-layer.so

edge: ## Build libweir-edge, with its header and manual page
	cargo build --release -p weir-edge-c
	install -D $(TARGET)/release/libweir_edge_c.so $(STAGE)/lib/libweir-edge.so.0
	ln -sf libweir-edge.so.0 $(STAGE)/lib/libweir-edge.so
	install -D -m 644 crates/edge-c/include/weir/edge.h $(STAGE)/include/weir/edge.h
	mkdir -p $(STAGE)/lib/pkgconfig
	sed 's/@VERSION@/$(VERSION)/' contrib/weir-edge.pc.in > $(STAGE)/lib/pkgconfig/weir-edge.pc

fabric: ## Build libfabric's provider weir-odp
	cargo build --release -p weir-fabric
	install -D $(TARGET)/release/libweir_odp_fi.so $(STAGE)/lib/weir/libweir-odp-fi.so

# Weir's C programs beside the adapter: weir-verify checks every byte, weir-odp measures paging, weir-micro is the
# papers' micro-benchmark, weir-stream measures the throughput of a stream of messages, weir-crowd is many processes at once.
tools: $(patsubst %,$(STAGE)/lib/weir/weir-%,verify odp micro stream crowd)

$(STAGE)/lib/weir/weir-%: tests/c/%.c $(wildcard tests/c/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(WARN) -o $@ $< -libverbs

# What the command says of itself (manual pages, completions), and files as they are.
share: bin ## Put manual pages, completions and other files into target/weir
	rm -rf $(STAGE)/share
	$(STAGE)/bin/weir man $(STAGE)/share/man/man1
	for file in bash-completion/completions/weir zsh/site-functions/_weir fish/vendor_completions.d/weir.fish; do \
		mkdir -p $(STAGE)/share/$${file%/*} && \
		$(STAGE)/bin/weir completions $${file%%[-/]*} > $(STAGE)/share/$$file || exit 1; \
	done
	install -D -m 644 -t $(STAGE)/share/man/man3 contrib/man/weir-edge.3
	install -D -m 644 -t $(STAGE)/share/weir contrib/weir.lua contrib/weir-findings.lua
	install -D -m 644 -t $(STAGE)/share/doc/weir LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md SECURITY.md

# What packages contain: everything, without the debug information, which is four fifths of it.
.PHONY: stripped
stripped: build
	rm -rf $(DIST)/weir
	mkdir -p $(DIST)
	cp -R $(STAGE) $(DIST)/weir
	find $(DIST)/weir/bin $(DIST)/weir/lib -type f ! -name "*.pc" -exec strip --strip-debug {} +

dist: stripped ## Make target/dist/weir-VERSION-MACHINE.tar.gz, which runs from any folder
	tar -C $(DIST)/weir --owner=0 --group=0 --sort=name --transform 's,^,$(RELEASE)/,' \
		-czf $(DIST)/$(RELEASE).tar.gz bin include lib share
	@ls -l $(DIST)/$(RELEASE).tar.gz

deb: stripped ## Make a package for Debian and Ubuntu in target/dist, with cargo-deb, which it installs if missing
	@cargo deb --version >/dev/null 2>&1 || \
		{ echo "missing: cargo-deb (makes the package): cargo install cargo-deb"; cargo install --locked cargo-deb; }
	cargo deb -q -p weir-cli --no-build --no-strip -o $(DIST)/

test: ## Install the packages that tests need, build, and run all tests
	@scripts/need.sh test
	@$(MAKE) --no-print-directory build
	@# Without a guest's kernel, a test is skipped.
	@[ "$$(id -u)" != 0 ] || tests/interop/kernel.sh >/dev/null || true
	WEIR_LIB_DIR=$(STAGE)/lib/weir scripts/test.py
	tests/conformance/run.py --strict
	tests/strangers/run.py --short

test-all: ## As `make test`, with every option of perftest in every network setup
	@E2E_MATRIX=whole $(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-interop test-packages test-examples test-strangers test-applications test-ci

test-interop: ## Run programs between Weir and the kernel's Soft-RoCE, in a guest (root; network at first); INTEROP='--only REGEX'
	@scripts/need.sh interop
	@$(MAKE) --no-print-directory build
	WEIR_LIB_DIR=$(STAGE)/lib/weir tests/interop/run.py $(INTEROP)

test-packages: ## Install and run the packages on minimal Debian systems (root, network)
	@scripts/need.sh packages
	@$(MAKE) --no-print-directory deb dist
	tests/packages.sh $(DIST)/weir_$(VERSION)-1_*.deb $(DIST)/$(RELEASE).tar.gz

test-examples: ## Build and run the examples, the Rust example too (network)
	@scripts/need.sh examples
	@$(MAKE) --no-print-directory build
	$(MAKE) -C examples/c
	cargo build --manifest-path examples/rust/Cargo.toml --target-dir $(TARGET)/examples
	tests/examples.sh $(STAGE)/bin/weir

test-strangers: ## Run programs from PyPI, crates.io and GitHub over Weir: tests of mpi4py and fabtests, NIXL, Mooncake, Rust examples (network); FABTESTS=CHECKOUT
	@scripts/need.sh strangers
	@$(MAKE) --no-print-directory build
	tests/strangers/run.py $(if $(FABTESTS),--fabtests '$(FABTESTS)')

# The option of a variable that is set.
option = $(if $(2),--$(1) '$(2)')
APPLICATIONS = $(if $(ARGODSM),argo) $(if $(SPARKUCX),spark)

test-applications: ## Run ArgoDSM and SparkUCX over Weir, if their checkouts are given: ARGODSM=DIR SPARKUCX=DIR UCX=PREFIX JAVA=HOME
	@[ -n "$(ARGODSM)" ] || echo "skipped: ArgoDSM, because there is no checkout: ARGODSM=DIR"
	@[ -n "$(SPARKUCX)" ] || echo "skipped: SparkUCX, because there is no checkout: SPARKUCX=DIR"
	@[ -z "$(strip $(APPLICATIONS))" ] || $(MAKE) --no-print-directory build
	@[ -z "$(strip $(APPLICATIONS))" ] || tests/applications.py $(STAGE)/bin/weir $(TARGET)/applications $(APPLICATIONS) -- \
		$(call option,argodsm,$(ARGODSM)) $(call option,sparkucx,$(SPARKUCX)) $(call option,ucx,$(UCX)) $(call option,java,$(JAVA))

test-ci: ## Run what contrib has for CI on minimal Debian systems, and build the image (root, network)
	@scripts/need.sh ci
	@$(MAKE) --no-print-directory deb
	tests/ci.sh $(DIST)/weir_$(VERSION)-1_*.deb

fuzz: ## Fuzz each target for FUZZ_SECONDS (60), and print executions; installs cargo-fuzz if it is missing (network at first)
	scripts/fuzz.sh

sanitize: ## Run tests under ThreadSanitizer and AddressSanitizer
	@scripts/need.sh test
	scripts/sanitize.sh thread
	scripts/sanitize.sh address

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

lint: ## Check formatting, lints, words, README's test count, messages of the log, circles of files, and IBTA clauses of the protocol's rules
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/clauses.py
	scripts/words.py
	scripts/rules.py
	scripts/circles.py
	scripts/messages.py
	tests/conformance/run.py --readme

install: build ## Install under PREFIX (default /usr/local), with DESTDIR before it
	@$(MAKE) --no-print-directory install-built

# Without a build: for root, which may have no Rust.
install-built:
	cd $(STAGE) && find bin lib -type f -exec install -D -m 755 {} $(DESTDIR)$(PREFIX)/{} \;
	cd $(STAGE) && find lib -type l -exec cp -P {} $(DESTDIR)$(PREFIX)/{} \;
	cd $(STAGE) && find include share -type f -exec install -D -m 644 {} $(DESTDIR)$(PREFIX)/{} \;

uninstall: ## Remove the files of `make install`
	@if [ -z "$(DESTDIR)" ] && [ -e /usr/local/lib/weir-system/manifest.json ]; then \
		echo "All programs of this machine use Weir: run weir install --uninstall first" >&2; exit 1; fi
	rm -f $(DESTDIR)$(PREFIX)/bin/weir
	rm -f $(DESTDIR)$(PREFIX)/lib/libweir-edge.so* $(DESTDIR)$(PREFIX)/lib/pkgconfig/weir-edge.pc
	rm -rf $(DESTDIR)$(PREFIX)/include/weir $(DESTDIR)$(PREFIX)/lib/weir $(DESTDIR)$(PREFIX)/share/weir $(DESTDIR)$(PREFIX)/share/doc/weir
	cd $(DESTDIR)$(PREFIX)/share && rm -f man/man1/weir.1 man/man1/weir-*.1 man/man3/weir-edge.3 bash-completion/completions/weir \
		zsh/site-functions/_weir fish/vendor_completions.d/weir.fish

clean: ## Remove all build output
	rm -rf $(TARGET)
