#!/bin/sh
# Packs the crates that are published, unpacks them in a workspace of their own, and checks them there: what a package
# leaves out is found.
#
#   --quick   all of them together: two minutes instead of five. Otherwise each alone, where it has of its dependencies
#             only what it asks for, and nothing that others ask for
set -eu

cd "$(dirname "$0")/.."
quick=
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=yes ;;
    *)
        awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
        [ "$1" = --help ] || exit 2
        exit 0
        ;;
    esac
    shift
done

cargo=${CARGO:-cargo}
folder=${CARGO_TARGET_DIR:-target}/packages
# What an earlier run packed is none of it; what was checked of the dependencies stays.
rm -rf "$folder/package" "$folder/unpacked"
# Cargo's own verification builds all dependencies of each package.
"$cargo" package --workspace --exclude lockapi-simulation --exclude lockapi-torture --exclude lockapi-failover \
    --exclude lockapi-fuzz --exclude lockapi-examples --target-dir "$folder" --no-verify

mkdir "$folder/unpacked"
cp Cargo.lock "$folder/unpacked"
for package in "$folder"/package/*.crate; do
    tar -xzf "$package" -C "$folder/unpacked"
done
cd "$folder/unpacked"
# They depend on each other by version, as in the registry, where they are not yet.
{
    printf '[workspace]\nresolver = "3"\nmembers = ["*"]\n[patch.crates-io]\n'
    for package in *-*/; do
        printf '%s = { path = "%s" }\n' "${package%%-[0-9]*}" "${package%/}"
    done
} >Cargo.toml
if [ -n "$quick" ]; then
    "$cargo" check --workspace --target-dir ../check
else
    for package in *-*/; do
        "$cargo" check -p "${package%%-[0-9]*}" --target-dir ../check
    done
fi
