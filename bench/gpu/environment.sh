# Sourced by run.sh and quarter_hour.sh: where modules are found, where results go, and the first row of a run.
#   OUT       the folder for results     PACKAGES  what bench/gpu/packages.sh made
#   PYTHON    the interpreter
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${OUT:-build/gpu}
python=${PYTHON:-python3}
packages=$(realpath -m "${PACKAGES:-build/gpu-packages}")
mkdir -p "$out"
export PYTHONUNBUFFERED=1
export PYTHONPATH="$PWD/runtime:$PWD/kernels:$PWD/bench/gpu:$PWD/bench:$packages${PYTHONPATH:+:$PYTHONPATH}"
"$python" bench/gpu/machine.py "$out/rows.jsonl" || echo "The row of the machine is missing." >&2
