#!/bin/sh
# Puts known defects back into the library, one at a time, and sees whether the simulation finds each.
#
#   NAME ...   only the defects whose names contain one of these
#   --list     lists the defects, and does nothing
#   --check    sees only whether each can still be put back, and whether docs/track-record.md has the promises of each
#              that it lists; takes a second
#
# Each defect is a patch in conformance/simulation/defects. Its first lines tell what it is, which promise breaks, and
# with which arguments the simulation fails. It is put back in a copy of the tracked files, in the folder of cargo's
# output. It counts as found if the simulation tells that the promise is broken which the patch names, and the same seed
# succeeds without it. Where any of several may break first, the patch names them all, separated by "; ".
set -eu

cd "$(dirname "$0")/.."
mode=run
names=
while [ $# -gt 0 ]; do
    case $1 in
    --list) mode=list ;;
    --check) mode=check ;;
    -*)
        awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
        [ "$1" = --help ] || exit 2
        exit 0
        ;;
    *) names="$names $1" ;;
    esac
    shift
done

folder=$PWD/conformance/simulation/defects

# header PATCH WORD: what a line of the header says.
header() {
    sed -n "/^diff /q; s/^$2: //p" "$folder/$1.patch"
}

for part in $names; do
    ls "$folder" | grep -qF -- "$part" || { echo "no defect has a name with $part; --list lists them" >&2; exit 2; }
done

# The patches that are wanted.
patches=
for patch in "$folder"/*.patch; do
    name=$(basename "$patch" .patch)
    for word in Defect Promise Run; do
        [ -n "$(header "$name" "$word")" ] || { echo "$patch has no line \"$word: …\"" >&2; exit 1; }
    done
    wanted=
    for part in ${names:-$name}; do
        case $name in *"$part"*) wanted=yes ;; esac
    done
    [ -z "$wanted" ] || patches="$patches $name"
done
case $mode in
list)
    for name in $patches; do
        printf '%s\n    %s\n    breaks: %s\n    simulate %s\n' "$name" "$(header "$name" Defect)" \
            "$(header "$name" Promise)" "$(header "$name" Run)"
    done
    exit 0
    ;;
check)
    failed=
    other=
    for name in $patches; do
        git apply --check "$folder/$name.patch" || failed="$failed $name"
        # Those of the first review; what a later one found has the commit instead.
        listed=$(grep -F "| \`make defects ARGS=$name\`" docs/track-record.md | grep -vE "\| [0-9a-f]{7} \| \`make" || true)
        [ -z "$listed" ] || echo "$listed" | grep -qF "| $(header "$name" Promise) | \`" || other="$other $name"
    done
    [ -z "$failed" ] || echo "cannot be put back any more:$failed" >&2
    [ -z "$other" ] || echo "docs/track-record.md has other promises of:$other" >&2
    [ -z "$failed$other" ]
    exit
    ;;
esac

cargo=${CARGO:-cargo}
into=${CARGO_TARGET_DIR:-target}/defects
mkdir -p "$into"
into=$(cd "$into" && pwd -P)
tree=$into/tree
logs=$into/logs
rm -rf "$tree" "$logs"
mkdir -p "$tree" "$logs"
# With new times: cargo would take the files for those of an earlier build.
git ls-files -z | tar --null -T - -cf - | tar -xmf - -C "$tree"
cd "$tree"
# The copy is no part of the repository around it, of which `git apply` would look for the files.
GIT_CEILING_DIRECTORIES=$into
CARGO_TARGET_DIR=$into/build
CARGO_INCREMENTAL=1
export GIT_CEILING_DIRECTORIES CARGO_TARGET_DIR CARGO_INCREMENTAL
built=$CARGO_TARGET_DIR/simulation/simulate
unchanged=$into/unchanged

build() {
    "$cargo" build --profile simulation -p lockapi-simulation >"$logs/$1.build" 2>&1
}

build unchanged || { tail -n 50 "$logs/unchanged.build" >&2; exit 1; }
cp "$built" "$unchanged"

table=$logs/table
printf '%-42s %-48s %6s %8s\n' defect 'broken promise' seed seconds | tee "$table"
failed=

row() {
    printf '%-42s %-48s %6s %8s\n' "$@" | tee -a "$table"
}

# missed NAME WHY
missed() {
    failed="$failed $1"
    row "$1" "NOT FOUND: $2" - "$(($(date +%s) - began))"
}

# simulate NAME: runs the simulation on a defect that was put back.
simulate() {
    log=$logs/$1.log
    arguments=$(header "$1" Run)
    status=0
    # shellcheck disable=SC2086
    timeout 1800 "$built" $arguments >"$log" 2>"$log.errors" || status=$?
    case $status in
    0) missed "$1" "the simulation succeeds"; return ;;
    1) ;;
    124) missed "$1" "the simulation did not end within half an hour"; return ;;
    *) missed "$1" "the simulation ended with $status"; return ;;
    esac
    promise=$(sed -n 's/^\([a-z][^:"]*\): .*/\1/p' "$log" | head -n 1)
    [ -n "$promise" ] || { missed "$1" "no promise was broken"; return; }
    case "; $(header "$1" Promise); " in
    *"; $promise; "*) ;;
    *) missed "$1" "what broke is: $promise"; return ;;
    esac
    # What found it, before it was made smaller.
    plan=$(sed -n 's/^simulate //p' "$log" | head -n 1)
    # shellcheck disable=SC2086
    if ! timeout 1800 "$unchanged" ${plan:-$arguments} >"$log.unchanged" 2>&1; then
        missed "$1" "the simulation fails without it, too"
        return
    fi
    seed=$(echo "${plan:-$arguments}" | sed -n 's/.*--seed \([0-9]*\).*/\1/p')
    row "$1" "$promise" "$seed" "$(($(date +%s) - began))"
}

for name in $patches; do
    began=$(date +%s)
    if ! git apply "$folder/$name.patch"; then
        missed "$name" "it cannot be put back any more"
        continue
    fi
    if build "$name"; then
        simulate "$name"
    else
        missed "$name" "it does not build: $logs/$name.build"
    fi
    git apply -R "$folder/$name.patch"
done

echo
cat "$table"
[ -z "$failed" ]
