#!/usr/bin/env bash
# Everything that wants a GPU, stage by stage: bench/gpu/run.sh [compile] [kernels] [invariance] [engine] [http] [peers]
# Each stage ends before its deadline and writes every row as soon as it is measured, so that a run which is
# cut off keeps what it has. `compile` fills Triton's cache in parallel processes; ARCH (90 on an H100 or H200)
# keeps it to one architecture. Without a GPU the kernels run in the interpreter: right or wrong is checked, and
# no time is written. OUT names the folder for results, PYTHON the interpreter, DEADLINE a stage's seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${OUT:-build/gpu}
python=${PYTHON:-python3}
deadline=${DEADLINE:-520}
mkdir -p "$out"
wheels=$(printf '%s:' wheels/*.whl 2>/dev/null || true)
export PYTHONPATH="$PWD/runtime:$PWD/kernels:$PWD/bench/gpu:$PWD/bench:${wheels}${PYTHONPATH:-}"
stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(compile kernels invariance engine http peers)
status=0
for stage in "${stages[@]}"; do
  case $stage in
    compile) timeout "$deadline" "$python" -m slipway_kernels.cuda.ahead --quiet ${ARCH:+--arch "$ARCH"} || status=1 ;;
    kernels | invariance | engine | http | peers)
      [ "$stage" = http ] && script=serving || script=$stage  # http.py would hide the standard library's
      "$python" "bench/gpu/$script.py" --out "$out/rows.jsonl" --deadline "$deadline" || status=1 ;;
    *) echo "There is no stage $stage: compile, kernels, invariance, engine, http, peers." >&2; exit 2 ;;
  esac
done
"$python" bench/gpu/report.py "$out/rows.jsonl" >"$out/report.md"
echo "rows: $out/rows.jsonl, tables: $out/report.md"
exit $status
