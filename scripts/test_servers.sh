#!/usr/bin/env bash
# Install the servers that the tests start. Redis comes with the Python packages; PostgreSQL and nginx from the system.
# Only their programs are needed: no system service is created or started.
set -euo pipefail

has_postgresql() { command -v initdb >/dev/null || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; }
has_nginx() { command -v nginx >/dev/null || [ -x /usr/sbin/nginx ]; }

missing() {
    printf '\n!!! %s is not installed, and %s.\n' "$1" "$2" >&2
    printf '!!! Tests that need it will be SKIPPED (with CI=true: fail). Install "%s" to run them.\n\n' "$3" >&2
}

# Install package $2, which provides the program $1, unless function $3 finds it.
install() {
    if "$3"; then return 0; fi
    if [ "$(id -u)" -ne 0 ]; then missing "$1" "only root can install it" "$2"; return 0; fi
    if ! command -v apt-get >/dev/null; then missing "$1" "this system has no apt-get" "$2"; return 0; fi
    (apt-get update -q && apt-get install -qy --no-install-recommends "$2") >&2 || { missing "$1" "apt-get failed" "$2"; return 0; }
    "$3" || missing "$1" "apt-get brought none" "$2"
}

export DEBIAN_FRONTEND=noninteractive
cleanup=()
trap 'rm -f ${cleanup[@]+"${cleanup[@]}"}' EXIT

if ! has_postgresql && [ "$(id -u)" -eq 0 ]; then
    settings=/etc/postgresql-common/createcluster.d/lucius-tests.conf
    mkdir -p "$(dirname "$settings")"
    cleanup+=("$settings")
    echo "create_main_cluster = false" >"$settings"
fi
install PostgreSQL postgresql has_postgresql

if ! has_nginx && [ "$(id -u)" -eq 0 ] && [ ! -e /usr/sbin/policy-rc.d ]; then
    cleanup+=(/usr/sbin/policy-rc.d)  # packages start their services unless this says no
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
fi
install nginx nginx-light has_nginx
