#!/usr/bin/env bash
# Run a study: a program beside the tests that simulates, attacks or measures gpubench, and prints a table.
#
#   bash ci/study.sh                      list the studies
#   bash ci/study.sh NAME [ARGUMENTS]     run tests/studies/NAME.py; its first lines describe its arguments

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"
studies=$root/tests/studies
if [ $# = 0 ]; then
    for study in "$studies"/[!_]*.py; do
        printf '%-24s%s\n' "$(basename "$study" .py)" "$(head -n 1 "$study" | tr -d '"')"
    done
    exit
fi
[ -f "$studies/$1.py" ] || fail "there is no study $1: bash ci/study.sh lists them"
is_usable || setup dev
PYTHONPATH="$root/tests${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "$studies/$1.py" "${@:2}"
