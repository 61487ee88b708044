#!/usr/bin/env bash
# Measure everything this machine has and write a run file and an HTML report.
#
#   bash ci/bench.sh [OPTIONS of `gpubench run`]      e.g. --tier smoke, --filter 'bandwidth/*', --out FILE.jsonl
#
#   GPUBENCH_EXTRA=cuda12     install this extra (host, cuda12, cuda13, rocm7) instead of the one that fits the GPU
#   PYTHON, GPUBENCH_SYSTEM_SITE: see _setup.sh
#
# Its exit status is that of `gpubench run`, or else of the report. Its own messages go to stderr.

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"

# shellcheck source-path=SCRIPTDIR source=_extra.sh
. "$(dirname "${BASH_SOURCE[0]}")/_extra.sh"

out=""
previous=""
for argument in "$@"; do
    case $previous,$argument in
        --out,* | -o,*) out=$argument ;;
        *,--out=*) out=${argument#--out=} ;;
    esac
    previous=$argument
done

setup "${GPUBENCH_EXTRA:-$(extra_for_this_machine)}"

if [ -z "$out" ]; then
    out=gpubench-runs/$(date -u +%Y%m%dT%H%M%SZ)-$(uname -n | cut -d. -f1).jsonl
    mkdir -p gpubench-runs
    set -- --out "$out" "$@"
fi

# The run is in the background, so that this script can pass a TERM on to it; an INT of the terminal reaches both.
"$venv/bin/gpubench" run all "$@" &
run=$!
trap 'kill -TERM "$run" 2>/dev/null || true' TERM
trap : INT
status=0
wait "$run" || status=$?
while kill -0 "$run" 2>/dev/null; do
    status=0
    wait "$run" || status=$?
done
trap - TERM INT

if [ -s "$out" ] && [ "$status" -ne 2 ]; then
    report=${out%.gz}
    report=${report%.jsonl}.html
    reported=0
    "$venv/bin/gpubench" report "$out" -o "$report" --force >&2 || reported=$?
    [ "$status" -ne 0 ] || status=$reported
    say "run file: $out"
    [ "$reported" -ne 0 ] || say "report:   $report"
fi
exit "$status"
