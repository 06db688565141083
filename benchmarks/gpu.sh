#!/usr/bin/env bash
# The experiments on a GPU:
#   benchmarks/gpu.sh FOLDER...              with CUDA, of trials and contests
#   benchmarks/gpu.sh [WHEELS] [OPTION...]   with OpenCL
#
# FOLDER   trials of `feinsum tune --export`, or a contest of
#          `python -m benchmarks.gpu.making`. They need Python, numpy and CuPy, and a
#          contest JAX and torch. What is in their files of results is not run again.
# WHEELS   a folder of wheels, as `make gpu-wheels` collects them: everything is installed
#          from there, and from nowhere else. Without it nothing is installed.
# OPTION   handed on to `python -m benchmarks.experiments`, such as --only gradient.
#
# BUDGET   seconds for all folders together; 500 by default.
# PYTHON   the interpreter; python3 by default.
# OUT      where the JSON files and the pictures are written; .cache/gpu by default.
# DEVICE   a part of the name of the GPU; the first one that OpenCL lists by default.
# JAX_PLATFORMS  where JAX runs; by default CUDA if it is there, else the CPU.
#
# Exit codes: 0 done; 1 an experiment or the installation failed, or the time ran out;
# 2 bad usage; 3 there is no GPU with an OpenCL driver.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PYTHON=${PYTHON:-python3} OUT=${OUT:-.cache/gpu} NO_GPU=3

say() { echo "gpu.sh: $*" >&2; }

install_from() {
    local pip=("$PYTHON" -m pip install --quiet --no-index --find-links "$1")
    say "installing from $1"
    "${pip[@]}" 'feinsum[cli,opencl,plots]' jax
    "${pip[@]}" 'jax[cuda12]' || say "no wheels of JAX for CUDA: it will run on the CPU"
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

run_folders() {
    local end=$((SECONDS + ${BUDGET:-500})) code=0 folder script
    # By default JAX takes most of the memory of the GPU, and others are left without.
    export XLA_PYTHON_CLIENT_PREALLOCATE=false
    for folder; do
        script=$folder/runner.py
        [[ -e $folder/contest.py ]] && script=$folder/contest.py
        [[ -e $script ]] || { say "neither trials nor a contest: $folder"; exit 2; }
    done
    for folder; do
        script=$folder/runner.py
        [[ -e $folder/contest.py ]] && script=$folder/contest.py
        say "$script, $((end - SECONDS)) s left"
        "$PYTHON" "$script" --budget $((end - SECONDS)) || code=1
    done
    exit "$code"
}

main() {
    [[ $# -eq 0 || ! -e $1/bundle.json ]] || run_folders "$@"
    if [[ $# -gt 0 && $1 != --* ]]; then
        [[ -d $1 ]] || { say "no folder of wheels: $1"; exit 2; }
        install_from "$1"
        shift
    fi
    export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
    mkdir -p "$OUT"
    local gpu code=0
    gpu=$("$PYTHON" benchmarks/opencl_facts.py "${DEVICE:-}" 2> "$OUT/opencl.txt") ||
        code=$?
    cat "$OUT/opencl.txt" >&2
    if [[ $code -ne 0 ]]; then
        [[ $code -ne $NO_GPU ]] || say "no GPU has an OpenCL driver here; nothing is run"
        exit "$code"
    fi
    # By default JAX takes most of the memory of the GPU, and OpenCL is left without.
    export XLA_PYTHON_CLIENT_PREALLOCATE=false
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

main "$@"
