.POSIX:
.PHONY: help demo browser operators check lint lint-all test test-rest matrix simulate defects fuzz interleavings torture failover mutants mutants-locks packages semver bench peers

CARGO = cargo
# Options of the demo, such as ARGS='--workers 20 --kill 5', of the simulation and of torture, such as
# ARGS='--seed 7', of the matrix, such as ARGS='--versions 13,18 --quick', of the packages, of the drill of fail-over
# and of the mutants; options of cargo-nextest for the rest of the tests; names of defects.
ARGS =
# How long `make fuzz` runs; the properties share the processors.
SECONDS = 60
# The first seed of `make fuzz`, for the same values each time; without it they are random.
FIRST =
# What a failure of `make fuzz` says: the seed of its values, and the whole name of the property.
SEED =
ONLY =
# What `make semver` compares with.
BASELINE = HEAD~1
# How many jobs there are beside which `make operators` looks at the screens.
JOBS = 10000000

# Where the servers of the tests have their files: in memory, where there are 4 GB for them.
FILES = if [ -z "$$TMPDIR" ] && [ -w /dev/shm ] && \
	[ "$$(df -Pk /dev/shm | awk 'NR == 2 { print $$4 }')" -gt 4000000 ]; then export TMPDIR=/dev/shm; fi
# Cases wait more than they compute. They share a server that has 200 connections.
THREADS = $$(getconf _NPROCESSORS_ONLN | awk '{ print ($$1 < 4 ? $$1 : 4) * 6 }')
# One build has the tests of all features, and all cases.
FEATURES = --features lockapi/tracing,lockapi/metrics,lockapi/opentelemetry
NEXTEST = $(FILES); $(CARGO) nextest run --test-threads $(THREADS)
BUILT = $${CARGO_TARGET_DIR:-target}/debug

help:
	@echo 'make demo       ten processes on three database libraries share recurring tasks while some of'
	@echo '                them are killed (a minute, and a few minutes to build); ARGS=--help lists'
	@echo '                its options; ARGS=--web serves a page to watch it on'
	@echo 'make browser    the page in Chromium: clicks, and pictures of each screen'
	@echo 'make operators  what each screen of the page takes beside JOBS=10000000 jobs (ten minutes, 6 GB)'
	@echo 'make check      format, lints, unit tests and the suite in memory'
	@echo 'make lint-all   format, lints also of each feature alone, and documentation'
	@echo 'make test       all cases on sqlx, those that depend on the library on the others, the examples of'
	@echo '                the documentation, and 1,000 simulated programs'
	@echo 'make test-rest  the cases on the other faces, and on connections of pools; ARGS="--partition hash:1/2"'
	@echo '                for a part'
	@echo 'make matrix     the cases on PostgreSQL 13 to 18, also behind PgBouncer and as a role of hostile'
	@echo '                settings, and a table of what passed; downloads servers with npm;'
	@echo '                ARGS=--help lists its options'
	@echo 'make simulate   programs on a server and a network that fail by seed, in virtual time; it needs no'
	@echo '                PostgreSQL; ARGS=--help lists its options'
	@echo 'make defects    puts known defects back in a copy, one at a time, and sees whether the simulation'
	@echo '                finds each; ARGS=--help lists its options'
	@echo 'make fuzz       known and random rows, texts, times, limits and messages for decoders and parsers;'
	@echo '                SECONDS=3600 for longer than a minute'
	@echo 'make interleavings  code with wake-ups of its own, in thousands of thread interleavings'
	@echo 'make torture    programs of all libraries on a real server, while processes, server and network'
	@echo '                fail, with every answer checked (three minutes); ARGS=--help lists its options'
	@echo 'make failover   ten processes on a cluster under Patroni, which changes its primary ten times'
	@echo '                (three minutes, and a few to build); ARGS=--help lists its options'
	@echo 'make mutants    changes statements one at a time, and lists the changes that no test notices;'
	@echo '                ARGS=--help lists its options'
	@echo 'make mutants-locks  the same with the transitions of the lock table, in a copy that is built anew;'
	@echo '                ARGS="--shard 1/20" for a part'
	@echo 'make packages   checks the dependencies of the crates, and whether they can be published;'
	@echo '                ARGS=--quick checks the packages together, and not each alone'
	@echo 'make semver     what has changed in the public interfaces since BASELINE, a commit or a tag'
	@echo 'make bench      operations per second, beside the bare drivers and other libraries'
	@echo 'make peers      jobs per second, beside pgmq, graphile-worker and awa'
	@echo
	@echo 'They install what is missing on Debian and Ubuntu, and say what to install elsewhere. The'
	@echo 'PostgreSQL servers they use are their own, and are removed in the end.'

demo:
	@sh .ci/deps.sh demo
	@case ' $(ARGS) ' in *' --web '*) $(CARGO) build -p lockapi-console ;; esac
	$(CARGO) run -p lockapi-conformance --no-default-features --example fleet -- $(ARGS)

lint:
	@sh .ci/deps.sh test
	@.ci/defects.sh --check
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --all-features -- -D warnings

check: lint
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		$(NEXTEST) -E 'package(lockapi) or binary(memory)'; \
	else \
		$(CARGO) test -p lockapi --lib --tests && $(CARGO) test -p lockapi-conformance --test memory; \
	fi

lint-all: lint
	for features in '' tracing metrics opentelemetry tower runtime; do \
		$(CARGO) clippy -p lockapi --no-default-features --features "$$features" -- -D warnings || exit; \
	done
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --no-deps $(FEATURES)

test:
	@sh .ci/deps.sh test
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		$(NEXTEST) $(FEATURES); \
	else \
		$(FILES); $(CARGO) test --lib --bins --tests $(FEATURES); \
	fi
	$(CARGO) test --doc $(FEATURES)
	@$(MAKE) simulate ARGS='--small --seeds 1000'

test-rest:
	@sh .ci/deps.sh test
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		$(NEXTEST) $(FEATURES) --ignore-default-filter -E 'not default()' $(ARGS); \
	else \
		echo 'make test ran them: cargo-nextest is not there to choose'; \
	fi

matrix:
	@sh .ci/deps.sh matrix
	@CARGO='$(CARGO)' .ci/matrix.sh $(ARGS)

simulate:
	$(CARGO) run --profile simulation -p lockapi-simulation -- $(ARGS)

defects:
	@CARGO='$(CARGO)' .ci/defects.sh $(ARGS)

# Everything is built with the cfg, in a folder of its own; a schedule that fails tells more than frames do. Without
# tests, as without the cfg, nextest fails.
interleavings:
	@sh .ci/deps.sh test
	@$(CARGO) nextest --version >/dev/null 2>&1 || $(CARGO) install cargo-nextest --locked
	unset CARGO_ENCODED_RUSTFLAGS; CARGO_PROFILE_DEV_DEBUG=false RUSTFLAGS='--cfg shuttle' \
		$(CARGO) nextest run -p lockapi --lib --target-dir target/interleavings \
		--no-fail-fast -E 'test(/\binterleavings::/)'

# What follows is built like the tests, so that little has to be built after them.
fuzz:
	@sh .ci/deps.sh test
	@$(CARGO) nextest --version >/dev/null 2>&1 || $(CARGO) install cargo-nextest --locked
	@report=$$(mktemp); trap 'rm -f "$$report"' EXIT; status=0; \
	LOCKAPI_FUZZ_REPORT=$$report LOCKAPI_FUZZ_SECONDS=$(SECONDS) LOCKAPI_FUZZ_FIRST=$(FIRST) LOCKAPI_FUZZ_SEED=$(SEED) \
		$(CARGO) nextest run --profile fuzz --workspace --lib $(FEATURES) --test-threads 1000 \
		-E 'test(/\bfuzz::/) $(if $(ONLY),and test(=$(ONLY)))' || status=$$?; \
	sort -k 7 "$$report"; exit $$status

torture:
	@sh .ci/deps.sh test
	$(CARGO) build --workspace --bin torture $(FEATURES)
	$(FILES); $(BUILT)/torture $(ARGS)

browser:
	@sh .ci/deps.sh browser
	$(FILES); $(CARGO) test -p lockapi-console --test browser -- --ignored

operators:
	@sh .ci/deps.sh demo
	$(FILES); LOCKAPI_SCALE=$(JOBS) $(CARGO) test -p lockapi-console --test scale -- --ignored --nocapture

failover:
	@sh .ci/deps.sh failover
	$(FILES); $(CARGO) run --release -p lockapi-failover -- $(ARGS)

mutants:
	@sh .ci/deps.sh test
	$(CARGO) build --workspace --example mutants $(FEATURES)
	$(FILES); $(BUILT)/examples/mutants $(ARGS)

mutants-locks:
	@$(CARGO) mutants --version >/dev/null 2>&1 || $(CARGO) install cargo-mutants@27.1.0 --locked
	CARGO_INCREMENTAL=1 $(CARGO) mutants --package lockapi --test-package lockapi --output target $(ARGS)

packages:
	@$(CARGO) deny --version >/dev/null 2>&1 || \
		$(CARGO) install cargo-deny@0.20.2 --locked --debug
	@# Advisories come from a repository that CI cannot reach: `cargo deny check advisories` by hand.
	$(CARGO) deny check bans licenses sources
	@CARGO='$(CARGO)' .ci/packages.sh $(ARGS)

# Not a part of CI: a version is compared with the one before, and both are built.
semver:
	@$(CARGO) semver-checks --version >/dev/null 2>&1 || $(CARGO) install cargo-semver-checks@0.51.0 --locked
	$(CARGO) semver-checks --workspace --baseline-rev $(BASELINE) --exclude lockapi-conformance \
		--exclude lockapi-console --exclude lockapi-diesel-types --exclude lockapi-postgres-types

bench:
	@sh .ci/deps.sh demo
	$(CARGO) bench -p lockapi-conformance

peers:
	@sh .ci/deps.sh demo
	cd conformance/peers && $(CARGO) run --release
