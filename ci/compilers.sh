#!/usr/bin/env bash
# Compare compilers that cannot share an environment: make an environment for each, one after the other, run the suite
# `compilers` in it, write its page, and put all runs on one page, each as a column.
#
#   bash ci/compilers.sh [ENVIRONMENT…] [-- OPTIONS of `gpubench run`]     e.g. tvm iree -- --tier quick
#
#   light   NumPy and numba, on a GPU also CuPy and our own kernels; Triton; with cuda13 also cuTile
#   torch   torch and its Inductor, compared with the eager library of `light`  (3 GB)
#   jax     JAX, compared with the same library                                 (3 GB)
#   tvm     TVM on the host and on an NVIDIA GPU, compared with the same library
#   iree    IREE, in the same way
#
# Without a name: light, tvm and iree; with an NVIDIA GPU all of them. The tier is `full` unless an option names another.
#
#   GPUBENCH_OUT=DIR            where runs and the page go [gpubench-runs/compilers]
#   GPUBENCH_ENVIRONMENTS=DIR   keep the environments there, for the next time [each is removed after its run]
#   GPUBENCH_EXTRA, PYTHON      see bench.sh, _setup.sh
#
# An environment that cannot be made is left out. The exit status is the highest of all steps.

# shellcheck source-path=SCRIPTDIR source=_setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/_setup.sh"
# shellcheck source-path=SCRIPTDIR source=_extra.sh
. "$(dirname "${BASH_SOURCE[0]}")/_extra.sh"

base=${GPUBENCH_EXTRA:-$(extra_for_this_machine)}
out=${GPUBENCH_OUT:-gpubench-runs/compilers}
work=${GPUBENCH_ENVIRONMENTS:-$(mktemp -d)}
[ -n "${GPUBENCH_ENVIRONMENTS:-}" ] || trap 'rm -rf "$work"' EXIT
found=$(find_python)

names=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    names+=("$1")
    shift
done
[ $# -eq 0 ] || shift
options=(--tier full "$@") # if an option occurs twice, the last one counts

plan() { # of the environment $1: the `extras` to install, and the `words` (arguments) of its run
    case $1 in
        light)
            extras=$base,compilers words=()
            [ "$base" != cuda13 ] || extras+=,cutile
            ;;
        torch) extras=$base,compilers,torch words=(--filter '*by=torch*' --filter '*by=inductor*') ;;
        jax) extras=$base,jax words=(--filter '*by=jax*') ;;
        tvm | iree) extras=$base,$1 words=(--filter "*by=$1*") ;;
        *) fail "unknown environment $1: name light, torch, jax, tvm or iree" ;;
    esac
    case $1,$base in # the eager library of the device
        light,*) ;;
        *,host) words+=(--filter '*by=numpy*') ;;
        tvm,* | iree,*) words+=(--with-host --filter '*by=numpy*' --filter '*by=cupy,*' --filter '*by=cupy]*') ;;
        *) words+=(--filter '*by=cupy,*' --filter '*by=cupy]*') ;;
    esac
}

make_environment() { # $1, with the extras of `plan`
    [ -x "$work/$1/bin/python" ] || "$found" -m venv "$work/$1"
    "$work/$1/bin/python" -m pip install --quiet --disable-pip-version-check --editable "${root}[$extras]" >&2
}

end_with() { # the highest status of all steps
    [ "$1" -le "$worst" ] || worst=$1
}

if [ ${#names[@]} -eq 0 ]; then
    case $base in
        cuda*) names=(light torch jax tvm iree) ;;
        *) names=(light tvm iree) ;;
    esac
fi
for name in "${names[@]}"; do plan "$name"; done

mkdir -p "$out"
runs=()
columns=""
worst=0
for name in "${names[@]}"; do
    plan "$name"
    started=$SECONDS status=0
    if ! make_environment "$name"; then
        say "$name is left out: pip could not install gpubench-suite[$extras]; its message is above"
        end_with 2
        continue
    fi
    say "$name: installed in $((SECONDS - started)) s, $(du -sh "$work/$name" | cut -f1)"
    rm -f "$out/$name.jsonl"
    "$work/$name/bin/gpubench" run compilers "${words[@]}" "${options[@]}" --out "$out/$name.jsonl" || status=$?
    end_with "$status"
    if [ -s "$out/$name.jsonl" ]; then # write the page of all runs so far, so that a failed run costs only itself
        runs+=("$out/$name.jsonl")
        columns+=" $name"
        "$work/$name/bin/gpubench" report "$out/$name.jsonl" -o "$out/$name.html" --force >&2 || end_with $?
        [ ${#runs[@]} -eq 1 ] ||
            "$work/$name/bin/gpubench" report "${runs[@]}" -o "$out/compilers.html" --force >&2 || end_with $?
    fi
    [ -n "${GPUBENCH_ENVIRONMENTS:-}" ] || rm -rf "${work:?}/$name"
done
[ ${#runs[@]} -eq 0 ] || say "runs and pages: $out; the columns of compilers.html are$columns"
exit "$worst"
