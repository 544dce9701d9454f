#!/usr/bin/env bash
# tools/packages.sh PACKAGE…: install system packages as root; otherwise print the line to type, and fail.
set -euo pipefail
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  exec 9>"${TMPDIR:-/tmp}/slipway-packages.lock"  # as e2e/ground/packages.py: apt gives up where another one is at work
  flock 9
  tools/step "Reading the lists of packages" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive tools/step "Installing $*" apt-get install -yqq --no-install-recommends "$@"
else
  echo "Missing on this machine. Please type: sudo apt-get install -y $*" >&2
  exit 1
fi
