#!/usr/bin/env bash
# tools/packages.sh PACKAGE…: install system packages as root; otherwise print the line to type, and fail.
set -euo pipefail
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Missing on this machine. Please type: sudo apt-get install -y --no-install-recommends $*" >&2
  exit 1
fi

# apt-get gives up where another one is at work. One of ours takes its turn; others, such as the upgrades of a machine
# that has just started, are asked again.
exec 9>"${TMPDIR:-/tmp}/slipway-packages.lock"
flock 9
patiently() {
  local said
  for ((tries = 0; tries < 300; ++tries)); do
    if said=$(apt-get -qq "$@" 2>&1 9>&-); then return; fi
    [[ $said == *"Could not get lock"* ]] || break
    sleep 2
  done
  echo "$said" >&2
  return 100
}
export -f patiently
export DEBIAN_FRONTEND=noninteractive
tools/step "Reading the lists of packages" bash -c 'patiently "$@"' - update
tools/step "Installing $*" bash -c 'patiently "$@"' - install -y --no-install-recommends "$@"
