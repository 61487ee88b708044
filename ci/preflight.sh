#!/usr/bin/env bash
# Check the GPUs of a node before and after each job of Slurm. In slurm.conf:
#
#   Prolog=/opt/gpubench/preflight.sh
#   Epilog=/opt/gpubench/preflight.sh
#   PrologFlags=Alloc
#   PrologEpilogTimeout=120
#
# A slow or sick GPU makes the script fail: Slurm drains the node, and requeues the job of a prolog. What cannot be judged
# (fewer than five GPUs to compare, a GPU that another job uses, a failure of gpubench itself) is only written to the log
# of slurmd. GPUBENCH names the program, GPUBENCH_BUDGET the time.
set -u
export CUDA_DEVICE_ORDER=PCI_BUS_ID GPUBENCH_HISTORY=off

devices=()
if [ -n "${SLURM_JOB_GPUS:-}" ]; then
    IFS=, read -ra numbers <<<"$SLURM_JOB_GPUS"
    for number in "${numbers[@]}"; do devices+=(--device "cuda:$number"); done
fi
text=$("${GPUBENCH:-/opt/gpubench/bin/gpubench}" preflight --budget "${GPUBENCH_BUDGET:-30s}" ${devices[@]+"${devices[@]}"} 2>&1)
status=$?
echo "${SLURM_SCRIPT_CONTEXT:-gpubench}, job ${SLURM_JOB_ID:-none}, status $status: $text" >&2
case $status in
    1 | 6) exit 1 ;;
    *) exit 0 ;;
esac
