#!/usr/bin/env bash
# What two calls on a rented H100 or H200 can tell: bench/gpu/quarter_hour.sh 1|2 [GROUP]...
# Each call is complete in itself, on a machine that has nothing but Python, torch and Triton; quarter_hour.py has the
# plan with every limit. Four files are left in OUT: rows.jsonl, to which each row is written as it is measured,
# report.md, failed.jsonl and log.txt. Without a GPU it is a rehearsal: tiny shapes in the interpreter, no times.
# Beforehand: bench/gpu/packages.sh, and `slipway compile --arch 90 --to build/gpu-kernels`; take both folders along.
# Reads what environment.sh reads.
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
export SLIPWAY_KERNELS="${SLIPWAY_KERNELS:-$PWD/build/gpu-kernels}"
status=0
"$python" bench/gpu/quarter_hour.py "$@" --out "$out" || status=$?
[ "$status" = 2 ] || "$python" bench/gpu/report.py "$out/rows.jsonl" >"$out/report.md"
exit $status
