#!/bin/sh
# Runs what is in this folder, from anywhere: `run.sh test [FILTER]`, or any command of megatrain, e.g. `run.sh train --help`.
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)

# Every test whose name holds FILTER, and all tests of a program whose name does.
tests() {
    filter=${1-}
    # Without a GPU tests fail; MEGATRAIN_GPU_TESTS=optional leaves out what needs one.
    export MEGATRAIN_GPU_TESTS="${MEGATRAIN_GPU_TESTS-required}"
    export MEGATRAIN_GOLDEN="$here/golden"
    # Whole-run tests take the CPU executor unless they are told.
    if [ "$MEGATRAIN_GPU_TESTS" = required ]; then export MEGATRAIN_TEST_DEVICE="${MEGATRAIN_TEST_DEVICE-cuda}"; fi
    summary='' failed=0 matched=0
    for program in "$here"/tests/*; do
        name=$(basename "$program")
        case $name in *"$filter"*) inner='' ;; *) inner=$filter ;; esac
        count=$("$program" --list "$inner" | grep -c ': test$')
        [ "$count" -gt 0 ] || continue
        matched=$((matched + count))
        echo "== $name"
        start=$(date +%s)
        if "$program" "$inner"; then outcome=passed; else outcome=FAILED failed=$((failed + 1)); fi
        line=$(printf '%-8s%-28s%4d tests %6d s' "$outcome" "$name" "$count" "$(($(date +%s) - start))")
        summary="$summary$line
"
    done
    if [ "$matched" = 0 ]; then
        echo "no test's name holds \`$filter\`" >&2
        return 2
    fi
    printf '\n%s' "$summary"
    [ "$failed" = 0 ]
}

case ${1-} in
    '') cat "$here/README.txt" ;;
    test) shift; tests "$@" ;;
    *) exec "$here/megatrain" "$@" ;;
esac
