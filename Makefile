.POSIX:
.PHONY: help demo test bench

CARGO = cargo
# Options of the demo, such as ARGS='--workers 20 --kill 5'.
ARGS =

help:
	@echo 'make demo    ten processes on three database libraries share recurring tasks while some of'
	@echo '             them are killed (a minute, and a few minutes to build); ARGS=--help tells'
	@echo '             its options'
	@echo 'make test    format, lints, documentation and all tests'
	@echo 'make bench   locks and leases against the bare driver'
	@echo
	@echo 'They install what is missing on Debian and Ubuntu, and say what to install elsewhere. The'
	@echo 'PostgreSQL servers they use are their own, and are removed in the end.'

demo:
	@sh .ci/deps.sh demo
	$(CARGO) run --release -p conformance --example fleet -- $(ARGS)

test:
	@sh .ci/deps.sh test
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets --all-features -- -D warnings
	for features in '' tracing metrics; do \
		$(CARGO) clippy -p lockapi --no-default-features --features "$$features" -- -D warnings || exit; \
	done
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --no-deps
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		threads=$$(( 3 * $$(getconf _NPROCESSORS_ONLN) )); \
		echo "$(CARGO) nextest run --test-threads $$threads"; \
		$(CARGO) nextest run --test-threads $$threads; \
	else \
		echo '$(CARGO) test --lib --bins --tests'; \
		$(CARGO) test --lib --bins --tests; \
	fi
	$(CARGO) test -p lockapi --all-features --test telemetry
	$(CARGO) test --doc

bench:
	@sh .ci/deps.sh demo
	$(CARGO) bench -p conformance
