#!/usr/bin/env bash
# Make the virtual environment $2 with interpreter $1 and install the dependencies of the extras $3; the C++
# kernels are compiled meanwhile.
# Missing system packages are installed as root; otherwise the line to type is printed.
set -euo pipefail
python=$1 venv=$2 extras=$3

# What pip collects and downloads, one line each; its last lines are in the way.
shown() { grep -E "^ *(Collecting|Downloading|Installing) " | cut -c1-100 || true; }

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

echo "Installing Slipway's dependencies ($extras) into $venv and compiling its kernels; the first time takes a minute or two."
"$python" -m slipway_kernels.build >/dev/null &
compiling=$!
mkdir -p "$(dirname "$venv")"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
requirements=$("$venv/bin/python" - "$extras" <<'PY'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
names = project["dependencies"] + [n for e in sys.argv[1].split(",") for n in project["optional-dependencies"][e]]
print("\n".join(names))
PY
)
# In two steps, so that each says how long it took: what the network costs, and what this machine does.
wheels=$(mktemp -d "$venv/wheels.XXXXXX")
trap 'rm -rf "$wheels"' EXIT
pip() { "$venv/bin/python" -m pip "$@" --disable-pip-version-check -r /dev/stdin <<<"$requirements" | shown; }
begun=$SECONDS
pip wheel --wheel-dir "$wheels"
echo "Downloaded in $((SECONDS - begun)) s; installing."
begun=$SECONDS
pip install --no-index --find-links "$wheels"
echo "Installed in $((SECONDS - begun)) s; waiting for the kernels."
wait "$compiling"
