#!/usr/bin/env bash
# tools/fetch_sources.sh PYTHON FOLDER: the sources of the package that the folder is called after, as NAME-VERSION.
set -euo pipefail
python=$1 folder=$2
name=${folder##*/}
package=${name%-*}
place=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$place"' EXIT
"$python" -m pip download -q --disable-pip-version-check --no-deps --no-binary "$package" -d "$place" \
  "$package==${name##*-}"
tar -C "$place" -xzf "$place/$name.tar.gz"
# Another may have been faster.
mv -T "$place/$name" "$folder" 2>/dev/null || [ -d "$folder" ]
