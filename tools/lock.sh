#!/usr/bin/env bash
# tools/lock.sh VERSIONS FOLDER: resolve every environment of this project to exact versions with hashes.
#
# VERSIONS    kept: the pins in FOLDER stay where pyproject.toml allows them; upgraded: the newest that it allows; oldest:
#             the oldest that it allows; newest: the newest that exist, whatever its upper bounds are
# FOLDER      gets a file NAME.txt for each row below, in which no index is named
#
# CACHE and PYTHON are the Makefile's.
set -euo pipefail
versions=$1 folder=$2

# An environment, and the extras of pyproject.toml in it. The first has them all; the others take its versions.
environments=(
  "dev cpu torch cuda operator otel mistral ray bench test dev"
  "cpu cpu"
  "test cpu operator otel test"
  "image-cpu cpu otel"
  "image-cpu-torch cpu otel mistral torch"
  "image-cuda cpu otel mistral ray cuda"
  "image-operator operator"
)

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
project=pyproject.toml
options=()
case $versions in
  kept) ;;
  upgraded) options+=(--upgrade) ;;
  oldest) options+=(--upgrade --resolution lowest-direct) ;;
  newest)
    options+=(--upgrade)
    project=$place/pyproject.toml
    sed '/^\[project.optional-dependencies\]/,/^\[project.scripts\]/s/,<[0-9.]*//g' pyproject.toml >"$project"
    ;;
  *) echo "tools/lock.sh: $versions is none of kept, upgraded, oldest, newest" >&2 && exit 2 ;;
esac

compile() { # NAME UV_OPTION…
  local name=$1
  shift
  echo "$folder/$name.txt"
  tools/uv "$PYTHON" "$CACHE" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-annotate --custom-compile-command "make lock" "$@" -o "$folder/$name.txt"
}

touch "$place/pins.txt"
mkdir -p "$folder"
for row in "${environments[@]}"; do
  read -ra words <<<"$row"
  name=${words[0]}
  arguments=("$project" --constraint "$place/pins.txt" "${options[@]}")
  for extra in "${words[@]:1}"; do arguments+=(--extra "$extra"); done
  compile "$name" "${arguments[@]}"
  [ "$name" != dev ] || sed -n 's/^\([a-z0-9].*[^ ]\) *\\$/\1/p' "$folder/dev.txt" >"$place/pins.txt"
done
# PyTorch's index for CPU has a build of its own, which brings neither NVIDIA's libraries nor Triton: its image pins
# torch by version alone.
grep -o '^torch==[0-9.]*' "$folder/dev.txt" >"$folder/torch.txt"
awk '/^[a-z0-9]/ { dropped = /^(torch|triton|nvidia-[a-z0-9-]*|cuda-[a-z0-9-]*)==/ } !dropped' \
  "$folder/image-cpu-torch.txt" >"$place/kept.txt"
cp "$place/kept.txt" "$folder/image-cpu-torch.txt"
compile clients "$project" --extra clients "${options[@]}"

[ "$folder" = locks ] || exit 0
# uv installs all of these; setuptools builds our wheel.
printf 'uv\nsetuptools>=77\n' | compile tools - "${options[@]}"
# The oldest Triton that pyproject.toml allows: kernels are compiled under it, too.
grep -o 'triton>=[0-9.]*' pyproject.toml | sed 's/>=\(.*\)/==\1.0/' | compile triton-oldest -
