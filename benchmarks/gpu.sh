#!/usr/bin/env bash
# The experiments on a GPU:
#   benchmarks/gpu.sh cuda [WHEELS] [FOLDER...]     with CUDA
#   benchmarks/gpu.sh opencl [WHEELS] [OPTION...]   with OpenCL
#
# WHEELS   a folder of wheels, as `make gpu-wheels` collects them: feinsum is installed
#          from there, and from nowhere else. Without it nothing is installed.
# FOLDER   a contest of `python -m benchmarks.gpu.make_contest`, or trials of `python -m
#          benchmarks.gpu.bundle export`: they need Python, numpy and CuPy, and a contest JAX and torch.
#          Then come calls of the everyday suite, if feinsum is installed. Entries that
#          have results already are skipped.
# OPTION   passed on to `python -m benchmarks.experiments`, such as --only gradient.
#
# BUDGET   seconds for everything with CUDA, the installation included; 520 by default.
# CALLS    seconds of them for calls of the everyday suite; 130 by default, 0 for none.
# PYTHON   the interpreter; python3 by default.
# OUT      the folder of all results, JSON files and pictures, with copies of the results
#          in each FOLDER; by default .cache/gpu of this repository.
# DEVICE   a part of the name of the GPU; the first one that OpenCL lists by default.
# JAX_PLATFORMS  where JAX runs; by default CUDA if it is there, else the CPU.
#
# Exit codes: 0 done; 1 an experiment or the installation failed, or the time ran out;
# 2 bad usage; 3 there is no GPU.

set -euo pipefail
ROOT=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
readonly ROOT PYTHON=${PYTHON:-python3} OUT=${OUT:-$ROOT/.cache/gpu} NO_GPU=3
readonly CALLS=${CALLS:-130} REPORT_S=10

say() { echo "gpu.sh: $*" >&2; }

refuse() {
    say "$*"
    exit 2
}

# Without compiling all modules, of which most are never imported.
install_from() {
    local pip=("$PYTHON" -m pip install --quiet --no-compile)
    say "installing from $1"
    "${pip[@]}" --no-index --find-links "$1" "feinsum[$2]" || {
        say "the installation failed"
        exit 1
    }
}

has_wheels() { compgen -G "$1/*.whl" > /dev/null; }

# Whether this code runs; if not, prints the message with the error.
can_run() {
    local output
    output=$("$PYTHON" -c "$1" 2>&1 > /dev/null) || {
        say "$2${output:+ (${output##*$'\n'})}"
        return 1
    }
}

# CuPy itself is imported first: it loads the library that the module needs.
has_cutensor() {
    "$PYTHON" -c 'import cupy
from cupy_backends.cuda.libs import cutensor
assert cutensor.get_version() > 0' 2> /dev/null
}

script_of() {
    local name
    for name in contest.py runner.py; do
        [[ ! -e $1/$name ]] || { echo "$1/$name"; return; }
    done
}

run_cuda() {
    local end=$((SECONDS + ${BUDGET:-520})) wheels='' folder
    if [[ $# -gt 0 ]] && has_wheels "$1"; then
        wheels=$1
        shift
    fi
    for folder; do
        [[ -n $(script_of "$folder") ]] ||
            refuse "neither wheels, nor a contest, nor trials: $folder"
    done
    [[ -z $wheels ]] || install_from "$wheels" cli
    can_run 'import cupy; cupy.cuda.runtime.getDeviceProperties(0)' \
        "CuPy finds no GPU here; nothing is run" || exit "$NO_GPU"
    ! has_cutensor || export CUPY_ACCELERATORS=${CUPY_ACCELERATORS:-cub,cutensor}
    measure "$end" "$@"
}

# Folders, then calls of the everyday suite, then the report, until the time END.
measure() {
    local end=$1 code=0 calls=$CALLS folder results=()
    shift
    [[ $calls -eq 0 ]] ||
        can_run 'import benchmarks.gpu.everyday' \
            "feinsum cannot be imported: no calls of the everyday suite" || calls=0
    for folder; do
        run $((end - SECONDS - calls - REPORT_S)) "$(script_of "$folder")" || code=1
        copy_results "$folder"
        [[ ! -e $folder/contest.jsonl ]] || results+=("$folder/contest.jsonl")
    done
    if [[ $calls -gt 0 ]]; then
        run $((end - SECONDS - REPORT_S)) \
            -m benchmarks.gpu.everyday --out "$OUT/everyday.jsonl" || code=1
        results+=("$OUT/everyday.jsonl")
    fi
    if [[ ${#results[@]} -gt 0 ]]; then
        "$PYTHON" -m benchmarks.gpu.report "$OUT" "${results[@]}" || code=1
    fi
    say "written: $OUT"
    exit "$code"
}

# A folder's results go to OUT as well, which may be all that is copied back.
copy_results() {
    local copies file
    copies=$OUT/$(basename "$(realpath "$1")")
    for file in "$1"/contest.jsonl "$1"/results.jsonl; do
        [[ -e $file ]] || continue
        mkdir -p "$copies"
        [[ $file -ef $copies/${file##*/} ]] || cp "$file" "$copies"
    done
}

# Runs a script or a module for some seconds, without its table: the report has that.
run() {
    local seconds=$1
    shift
    [[ $seconds -gt 0 ]] || { say "no time for $*"; return 1; }
    say "$*: at most $seconds s"
    "$PYTHON" "$@" --budget "$seconds" > /dev/null
}

jax_platforms() {
    "$PYTHON" - <<'PY'
try:
    import jax

    print("cuda,cpu" if jax.default_backend() == "gpu" else "cpu")
except Exception:
    print("cpu")
PY
}

run_opencl() {
    if [[ $# -gt 0 && $1 != --* ]]; then
        has_wheels "$1" || refuse "no folder of wheels: $1"
        install_from "$1" cli,opencl,plots
        shift
    fi
    local gpu code=0 suite
    gpu=$("$PYTHON" "$ROOT/benchmarks/opencl_facts.py" "${DEVICE:-}" 2> "$OUT/opencl.txt") ||
        code=$?
    cat "$OUT/opencl.txt" >&2
    if [[ $code -ne 0 ]]; then
        [[ $code -ne $NO_GPU ]] || say "no GPU has an OpenCL driver here; nothing is run"
        exit "$code"
    fi
    export JAX_PLATFORMS=${JAX_PLATFORMS:-$(jax_platforms)}
    say "running on $gpu; JAX on $JAX_PLATFORMS"
    for suite in dgfem tccg; do
        "$PYTHON" -m benchmarks.experiments "$suite" --device "$gpu" --out "$OUT" \
            --without numpy --without opt_einsum --without tblis --without torch \
            --without torch.compile "$@"
    done
    "$PYTHON" -m feinsum.cli roofline --device "$gpu" --measure \
        --png "$OUT/roofline.png" --json > "$OUT/roofline.json"
    say "written: $OUT"
}

main() {
    local mode=${1:-}
    [[ $mode == cuda || $mode == opencl ]] || refuse "expected cuda or opencl, got '$mode'"
    shift
    mkdir -p "$OUT"
    export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
    # By default JAX reserves most of the GPU's memory, and leaves too little to others.
    export XLA_PYTHON_CLIENT_PREALLOCATE=false
    # torch.compile starts this many processes for each of ours.
    export TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-2}
    "run_$mode" "$@"
}

main "$@"
