#!/usr/bin/env bash
# Measures a GPU with a pack of `make gpu-pack`, in parts, the most important first:
#   gpu.sh [PACK] [PART...]
#
# PACK   the folder; by default that of this script.
# PART   by default all, in this order:
#   contest  12 entries of each suite against JAX, torch, CuPy and cuTENSOR
#   rest     all other entries
#   calls    everyday calls, and of halves, after feinsum is installed from the wheels
#   trials   recipes of workloads without a packaged fact, see docs/how-to/gpu.md
#   smoke    a line for each feature that works
#
# Each part takes two minutes at most, and writes each result at once to OUT. What has a
# result is skipped, so that the same command resumes.
#
# PYTHON   the interpreter, which has CuPy, JAX and torch; python3 by default.
# OUT      the folder of all results; by default PACK/results.
# PART_S   seconds of a part; 120 by default.
#
# Exit codes: 0 done; 1 a part failed or is unfinished; 2 bad usage; 3 there is no GPU.

set -euo pipefail
readonly PYTHON=${PYTHON:-python3} PART_S=${PART_S:-120} NO_GPU=3
readonly PARTS=(contest rest calls trials smoke) N_CONTEST=24 END_S=10

say() { echo "gpu.sh: $*" >&2; }

refuse() {
    say "$*"
    exit 2
}

# Once for each pack, and without compiling all modules, of which most are not imported.
install_feinsum() {
    local installed=$OUT/.installed pip=("$PYTHON" -m pip install --quiet --no-compile)
    local from=(--no-index --find-links "$PACK/wheels")
    if [[ $installed -nt $PACK/wheels ]] && "$PYTHON" -c 'import feinsum' 2> /dev/null; then
        return 0
    fi
    say "installing from $PACK/wheels"
    # an older build may have the same version
    "${pip[@]}" "${from[@]}" 'feinsum[cli]' &&
        "${pip[@]}" "${from[@]}" --no-deps --force-reinstall feinsum &&
        touch "$installed"
}

# Runs a script or a module for the seconds that are left of its part, and then ends it.
run() {
    local left=$((END - SECONDS))
    [[ $left -gt $END_S ]] || { say "no time is left for $*"; return 1; }
    timeout "$left" "$PYTHON" "$@" --budget "$((left - END_S))"
}

run_contest() {
    run -m benchmarks.gpu.contest "$PACK/contest" --out "$OUT/contest.jsonl" "$@"
}

run_part() {
    case $1 in
    contest) run_contest --first "$N_CONTEST" ;;
    rest) run_contest ;;
    calls) install_feinsum && run -m benchmarks.gpu.everyday --out "$OUT/everyday.jsonl" ;;
    trials) run -m benchmarks.gpu.bundle.runner "$PACK/trials" --out "$OUT/trials.jsonl" ;;
    smoke) install_feinsum &&
        run "$PACK/benchmarks/gpu/smoke.py" --log "$OUT/smoke.log" | tee "$OUT/smoke.txt" ;;
    esac
}

main() {
    PACK=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
    if [[ $# -gt 0 && -d $1 ]]; then
        PACK=$(realpath "$1")
        shift
    fi
    [[ -e $PACK/contest/bundle.json ]] || refuse "no pack of make gpu-pack: $PACK"
    local code=0 part reason
    for part; do
        [[ " ${PARTS[*]} " == *" $part "* ]] || refuse "expected ${PARTS[*]}, got '$part'"
    done
    [[ $# -gt 0 ]] || set -- "${PARTS[@]}"
    reason=$("$PYTHON" -c 'import cupy; cupy.cuda.runtime.getDeviceProperties(0)' 2>&1) || {
        say "CuPy finds no GPU here; nothing is run (${reason##*$'\n'})"
        exit "$NO_GPU"
    }
    OUT=${OUT:-$PACK/results}
    mkdir -p "$OUT"
    export PYTHONPATH=$PACK${PYTHONPATH:+:$PYTHONPATH}
    # By default JAX reserves most of the GPU's memory, and leaves too little to others.
    export XLA_PYTHON_CLIENT_PREALLOCATE=false
    # torch.compile starts this many processes for each of ours.
    export TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-2}
    for part; do
        say "$part: at most $PART_S s"
        END=$((SECONDS + PART_S))
        run_part "$part" || { code=1; say "$part: unfinished"; }
    done
    say "written: $OUT"
    exit "$code"
}

main "$@"
