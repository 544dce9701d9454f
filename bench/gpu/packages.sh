#!/usr/bin/env bash
# What `slipway serve` imports and a machine with a GPU may lack, for Python 3.12 on Linux x86_64, unpacked into a
# folder that git ignores: bench/gpu/packages.sh [FOLDER]. bench/gpu/run.sh looks for it in build/gpu-packages.
# torch, triton, transformers, numpy, safetensors, tokenizers, jinja2, httpx, huggingface_hub, prometheus-client,
# PyYAML and uvloop are expected there; obstore is wanted for buckets alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=${1:-build/gpu-packages}
rm -rf "$folder"
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --no-compile --target "$folder" \
  --python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
  --platform manylinux2014_x86_64 --only-binary :all: 'fastapi>=0.115' 'uvicorn>=0.32' httptools 'msgspec>=0.22' orjson
rm -rf "$folder/bin"
du -sh "$folder"
