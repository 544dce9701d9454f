#!/usr/bin/env bash
# One stage after another on a machine with a GPU: bench/gpu/run.sh [STAGE | STAGE:PART,PART]...
# Stages, in order of worth: compile kernels invariance text engine http peers. `compile` has kernels compiled in
# parallel processes, so that no launch waits for the compiler. Each stage ends before its deadline and writes every
# row as soon as it is measured: a run that is cut off keeps what it has. Without a GPU the kernels run in the
# interpreter: right or wrong is checked, and no time is written. Where time is short, quarter_hour.sh has a plan.
#   DEADLINE  seconds for each stage           ARCH    architecture to compile for, by default this GPU's
# and what environment.sh reads.
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
deadline=${DEADLINE:-500}
status=0
"$python" -m slipway_kernels.build >/dev/null || status=1 # for the stage text: the others do without
[ $# -gt 0 ] || set -- compile kernels invariance text engine http peers
for asked in "$@"; do
  stage=${asked%%:*}
  parts=()
  [ "$stage" = "$asked" ] || IFS=, read -ra parts <<<"${asked#*:}"
  case $stage in
    compile)
      arch=${ARCH:-$("$python" -c 'import torch as t; print(t.cuda.get_device_capability()[0] * 10 if t.cuda.is_available() else "")')}
      timeout "$deadline" "$python" -m slipway_kernels.cuda.ahead --quiet "${parts[@]}" ${arch:+--arch "$arch"} || status=1
      ;;
    kernels | invariance | text | engine | http | peers)
      case $stage in
        http) script=serving ;;       # http.py would hide the standard library's
        kernels) script=kernel_rows ;; # kernels.py is a package that transformers looks for
        *) script=$stage ;;
      esac
      "$python" "bench/gpu/$script.py" --out "$out/rows.jsonl" --deadline "$deadline" "${parts[@]}" || status=1
      ;;
    *)
      echo "There is no stage $stage: compile, kernels, invariance, text, engine, http, peers." >&2
      exit 2
      ;;
  esac
  echo "$asked: done at $SECONDS s" >&2
done
"$python" bench/gpu/report.py "$out/rows.jsonl" >"$out/report.md"
echo "rows: $out/rows.jsonl, tables: $out/report.md"
exit $status
