#!/usr/bin/env bash
# One directive, by hand: pull it, say that we have it, keep it alive, answer it. Needs curl and python3 (for JSON).
#   BASE_URL=http://127.0.0.1:8080 API_KEY=… SERVICE=ocr examples/service_with_curl.sh
# The names that `lucius conformance` and `lucius service` use are good, too: LUCIUS_ORCHESTRATOR_URL and LUCIUS_API_KEY.
set -euo pipefail
BASE_URL=${BASE_URL:-${LUCIUS_ORCHESTRATOR_URL:-}} API_KEY=${API_KEY:-${LUCIUS_API_KEY:-}}
: "${BASE_URL:?}" "${API_KEY:?}" "${SERVICE:?}"
WAIT_SECONDS=${WAIT_SECONDS:-20}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# 1. Pull: waits until there is a directive, or WAIT_SECONDS have passed. A pulled directive is handed over to us.
curl -sS --fail-with-body "$BASE_URL/v1/services/$SERVICE/directives:pull" \
  -H "Authorization: Bearer $API_KEY" -H 'Content-Type: application/json' \
  -d "{\"max\": 1, \"wait_seconds\": $WAIT_SECONDS}" > "$work/answer.json"

# What follows needs these parts of it. Every callback repeats who it is about: the five fields of `identity`.
field() { python3 -c 'import json, sys
directive = json.load(open(sys.argv[1]))["directives"][0]
for name in sys.argv[2].split("."): directive = directive[name]
print(directive)' "$work/answer.json" "$1"; }
if python3 -c 'import json, sys; sys.exit(bool(json.load(open(sys.argv[1]))["directives"]))' "$work/answer.json"; then
  echo "nothing to do for $SERVICE"
  exit 3
fi
identity=$(python3 -c 'import json, sys
directive = json.load(open(sys.argv[1]))["directives"][0]
names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
print(json.dumps({name: directive[name] for name in names})[1:-1])' "$work/answer.json")
token=$(field callback_token)
echo "got $(field message_id)"

callback() { curl -sS --fail-with-body "$1" \
  -H "Authorization: Bearer $token" -H 'Content-Type: application/json' -d "$2"; echo; }

# 2. ACK before the ACK deadline (30 s unless set otherwise), or the step is given to another process.
callback "$(field callback_urls.ack)" "{$identity}"

# 3. Heartbeat now and then while at work, before the lease ends; the answer says whether to stop. Progress, if you know it.
callback "$(field callback_urls.heartbeat)" "{$identity, \"progress\": {\"done\": 0, \"total\": 1, \"unit\": \"file\"}}"

# 4. The work. Artifacts belong under <workspace_ref>/<stepId>/<attempt_no>/, so that attempts never mix.
folder="$(field workspace_ref)/$(field stepId)/$(field attempt_no)"
path=$(python3 -c 'import sys, urllib.parse; print(urllib.parse.unquote(urllib.parse.urlsplit(sys.argv[1]).path))' "$folder")
mkdir -p "$path"
echo "made with curl for $(field message_id)" > "$path/output.txt"

# 5. RESULT. A failure would be: "status": "FAILED", "failure_class": "NON_RETRYABLE", "error": {"code": …, "message": …}
callback "$(field callback_urls.result)" \
  "{$identity, \"status\": \"SUCCEEDED\", \"result\": {\"by\": \"curl\"}, \"artifact_refs\": [\"$folder/output.txt\"]}"
