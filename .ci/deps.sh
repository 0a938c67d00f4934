#!/bin/sh
# Sees to the programs and libraries that the demo (`deps.sh demo`), the tests (`deps.sh test`), the tests on
# other versions of the server (`deps.sh matrix`), the page in a browser (`deps.sh browser`) and the drill of fail-over (`deps.sh failover`) need. Does
# nothing when they are there; installs them where there is apt-get, and otherwise says what to install.
set -eu

purpose=${1:-test}

have() {
    command -v "$1" >/dev/null 2>&1
}

# The places where the workspace looks for a server.
have_server() {
    [ "$purpose" = demo ] && [ -n "${DATABASE_URL:-}" ] && return 0
    for bin in "${LOCKAPI_PG_BIN:-/nowhere}" \
        /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
        /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin \
        /Library/PostgreSQL/*/bin /Applications/Postgres.app/Contents/Versions/*/bin; do
        [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ] && return 0
    done
    have initdb && have postgres
}

have_library() {
    have pkg-config && pkg-config --exists "$1"
}

# Cases run against a server whose messages are not in English.
german=/usr/share/i18n/locales/de_DE
have_german() {
    locale -a 2>/dev/null | grep -qi '^de_DE\.utf-\{0,1\}8$'
}

if ! have cargo; then
    echo "Rust is missing: install version 1.94 or newer, see https://rustup.rs" >&2
    exit 1
fi

missing=
have_server || missing="$missing postgresql"
have cc || missing="$missing gcc libc6-dev"
have pkg-config || missing="$missing pkg-config"
have_library libpq || missing="$missing libpq-dev"
tests=
case $purpose in test | matrix) tests=yes ;; esac
if [ -n "$tests" ]; then
    have_library openssl || missing="$missing libssl-dev"
    # Two hosts on one machine, to cut the cable between them.
    [ "$(uname)" != Linux ] || have ip || missing="$missing iproute2"
    have pgbouncer || [ -x /usr/sbin/pgbouncer ] || missing="$missing pgbouncer"
    # Steps of a server's clock.
    [ "$(uname)" != Linux ] || have faketime || missing="$missing faketime"
    have_german || [ -e "$german" ] || missing="$missing locales"
fi
if [ "$purpose" = browser ]; then
    have chromium || missing="$missing chromium"
    have chromedriver || missing="$missing chromium-driver"
fi
# Servers are downloaded with it.
[ "$purpose" != matrix ] || have npm || missing="$missing npm"
if [ "$purpose" = failover ]; then
    if [ "$(uname)" != Linux ]; then
        echo "The drill of fail-over runs on Linux." >&2
        exit 1
    fi
    have etcd || missing="$missing etcd-server"
    # Patroni's own package only recommends a driver.
    have patroni || missing="$missing patroni"
    /usr/bin/python3 -c 'import psycopg2' 2>/dev/null || missing="$missing python3-psycopg2"
fi

if [ -z "$tests" ] || have_german; then
    german=
fi
[ -n "$missing$german" ] || exit 0

if [ -n "$missing" ] && ! have apt-get; then
    echo "These are missing (the names are those of Debian's packages):$missing" >&2
    echo "Install them with the package manager of this system." >&2
    exit 1
fi

sudo=
if [ "$(id -u)" -ne 0 ]; then
    if ! have sudo; then
        echo "These packages are missing; have root install them: apt-get install$missing" >&2
        [ -z "$german" ] || echo "and make the locale de_DE.UTF-8" >&2
        exit 1
    fi
    sudo=sudo
fi

if [ -n "$missing" ]; then
    echo "Installing$missing"
    $sudo apt-get update -q
    # The list is meant to be split into words.
    # shellcheck disable=SC2086
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
fi
if [ -n "$german" ]; then
    $sudo localedef -i de_DE -f UTF-8 de_DE.UTF-8
fi
