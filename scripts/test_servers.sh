#!/usr/bin/env bash
# The servers that the tests start for themselves. Redis comes with the Python packages; PostgreSQL from the system.
set -euo pipefail

found() { command -v initdb >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; }

missing() {
    printf '\n!!! PostgreSQL is not installed, and %s.\n' "$1" >&2
    printf '!!! Tests that need it will be SKIPPED (with CI=true: fail). Install "postgresql" to run them.\n\n' >&2
    exit 0
}

if found; then exit 0; fi
if [ "$(id -u)" -ne 0 ]; then missing "only root can install it"; fi
if ! command -v apt-get >/dev/null; then missing "this system has no apt-get"; fi

# Only its programs are wanted: no cluster of the system's own is made or started.
settings=/etc/postgresql-common/createcluster.d/lucius-tests.conf
mkdir -p "$(dirname "$settings")"
trap 'rm -f "$settings"' EXIT
echo "create_main_cluster = false" >"$settings"
export DEBIAN_FRONTEND=noninteractive
(apt-get update -q && apt-get install -qy --no-install-recommends postgresql) >&2 || missing "apt-get failed"
found || missing "apt-get brought none"
