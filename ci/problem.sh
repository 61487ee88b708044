#!/usr/bin/env bash
# A plugin of Kubernetes' node-problem-detector (problem.json): 0 is no problem, 1 a problem, 2 unknown; one short line.
#
#   problem.sh preflight --budget 30s          a slow or sick GPU
#   problem.sh monitor --stuck --count 60      a GPU that looks hung
set -u
export GPUBENCH_HISTORY=off

text=$("${GPUBENCH:-/opt/gpubench/bin/gpubench}" "$@" 2>/dev/null)
status=$?
line=${text##*$'\n'}
echo "${line:0:80}"  # the detector keeps 80 characters
case $status in
    0) exit 0 ;;
    1 | 6) exit 1 ;;
    *) exit 2 ;;
esac
