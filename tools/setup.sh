#!/usr/bin/env bash
# tools/setup.sh PYTHON LOCK VENV: make the virtual environment VENV of what the file LOCK pins, with uv.
#
# The C++ kernels are compiled meanwhile. Missing system packages are installed as root; otherwise the line to type is
# printed. An index or a folder of wheels is taken from uv's variables and configuration, or else from pip's.
set -euo pipefail
python=$1 lock=$2 venv=$3
cache=$(dirname "$venv")

packages=()
command -v "${CXX:-g++}" >/dev/null || packages+=(g++)
if command -v "$python" >/dev/null; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Slipway needs Python 3.11 or newer; $python is $("$python" --version). Name another: make PYTHON=python3.12 …" >&2
    exit 1
  }
  "$python" -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
else
  packages+=(python3 python3-venv)
fi
if ((${#packages[@]})); then
  tools/packages.sh "${packages[@]}"
fi
python=$(command -v "$python")  # uv looks up a bare name by itself, and may find another Python

name=$(basename "$lock" .txt)
echo "Installing the packages of $name into $venv and compiling the kernels."
begun=$SECONDS
"$python" -m slipway_kernels.build >/dev/null &
compiling=$!
mkdir -p "$cache"
unfinished=$(mktemp -d "$venv.XXXXXX")
trap 'rm -rf "$unfinished"; kill "$compiling" 2>/dev/null || true' EXIT

# Renamed at the end: an environment that is there is complete, and two clones may make it at once.
tools/uv "$python" "$cache" venv --quiet --clear --relocatable --no-project --python "$python" "$unfinished"
tools/uv "$python" "$cache" pip install --quiet --python "$unfinished/bin/python" --require-hashes -r "$lock"
exec 9>"$cache/.setup.lock"
flock 9
[ -x "$venv/bin/python" ] || { rm -rf "$venv" && mv -T "$unfinished" "$venv"; }
exec 9>&-
echo "Installed in $((SECONDS - begun)) s; waiting for the kernels."
wait "$compiling"
