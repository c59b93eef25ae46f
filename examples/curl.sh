#!/usr/bin/env bash
# The example job by curl alone: examples/curl.sh URL API_KEY [OUT_DIR] [MAX_STEPS]
# Needs curl, and python3 to pick ids out of JSON. `./podium up` prints the URL and the key.
set -euo pipefail
url=$1 key=$2 out=${3:-podium-curl} max_steps=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"

show() { printf '\n$ curl'; printf ' %q' "$@"; printf '\n'; }
call() { curl --silent --show-error --fail-with-body --header "Authorization: Bearer $key" "$@"; }
pick() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

upload() {
  show "$url/v1/files" -F purpose=fine-tune -F "file=@$1" >&2
  call "$url/v1/files" -F purpose=fine-tune -F "file=@$here/biography/$1" | tee /dev/stderr | pick id
}

train=$(upload train.jsonl)
heldout=$(upload heldout.jsonl)

show "$url/v1/rewards" -F name=biography -F file=@reward.py
reward=$(call "$url/v1/rewards" -F name=biography -F "file=@$here/biography/reward.py" | tee /dev/stderr | pick id)

# job.json names everything but the three ids (and, for a quick look, fewer steps).
python3 - "$here/biography/job.json" "$train" "$heldout" "$reward" "$max_steps" > "$out/job.json" <<'PY'
import json, sys
path, train, heldout, reward, max_steps = sys.argv[1:]
job = json.load(open(path)) | {"training_file": train, "validation_file": heldout}
job["method"]["grpo"]["rewards"] = [{"reward": reward}]
if max_steps:
    job["method"]["grpo"]["hyperparameters"]["max_steps"] = int(max_steps)
print(json.dumps(job, indent=1))
PY

jobs=$url/v1/fine_tuning/jobs
show "$jobs" --json @job.json
job=$(call "$jobs" --json "@$out/job.json" | pick id)
echo "$job"

show "$jobs/$job"
while :; do
  status=$(call "$jobs/$job" | pick status)
  case $status in succeeded | failed | cancelled) break ;; esac
  sleep 1
done
echo "$status"

show "$jobs/$job/events?limit=100"
call "$jobs/$job/events?limit=100" |
  python3 -c 'import json, sys; [print(e["created_at"], e["message"]) for e in reversed(json.load(sys.stdin)["data"])]'

show --header "Accept: text/csv" "$jobs/$job/metrics?keys=reward,frac_reward_zero_std" --output metrics.csv
call --header "Accept: text/csv" "$jobs/$job/metrics?keys=reward,frac_reward_zero_std" --output "$out/metrics.csv"
tail -n 3 "$out/metrics.csv"

show --location "$jobs/$job/adapter" --output adapter.tar
call --location "$jobs/$job/adapter" --output "$out/adapter.tar"
tar --list --file "$out/adapter.tar"

show --location "$jobs/$job/results" --output results.json
call --location "$jobs/$job/results" --output "$out/results.json"
python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["verdict"]["sentence"])' "$out/results.json"
[ "$status" = succeeded ]
