#!/usr/bin/env bash
# The example job by curl alone: examples/curl.sh URL API_KEY [OUT_DIR] [MAX_STEPS]
# Needs curl, and python3 to pick ids out of JSON. `./podium up` prints the URL and the key.
set -euo pipefail
url=$1 key=$2 out=${3:-podium-curl} max_steps=${4:-}
here=$(dirname "$0")
mkdir -p "$out"

# What is shown is what is called; only the key is kept back, as $KEY.
show() { printf '\n$ curl --header "Authorization: Bearer $KEY"'; printf ' %q' "$@"; printf '\n'; }
call() { curl --silent --show-error --fail-with-body --header "Authorization: Bearer $key" "$@"; }
pick() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

# Make something; its id is in $id afterwards.
create() {
  show "$@"
  reply=$(call "$@") || { printf '%s\n' "$reply" >&2 && exit 1; }
  printf '%s\n' "$reply"
  id=$(pick id <<< "$reply")
}

# Fetch an answer into the file named.
save() {
  show --location "${@:2}" --output "$1"
  call --location "${@:2}" --output "$1"
}

create "$url/v1/files" -F purpose=fine-tune -F "file=@$here/biography/train.jsonl"
train=$id
create "$url/v1/files" -F purpose=fine-tune -F "file=@$here/biography/heldout.jsonl"
heldout=$id
create "$url/v1/rewards" -F name=biography -F "file=@$here/biography/reward.py"
reward=$id

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
printf '\n$ cat %q\n' "$out/job.json"
cat "$out/job.json"
create "$jobs" --json "@$out/job.json"
job=$id

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

save "$out/metrics.csv" --header "Accept: text/csv" "$jobs/$job/metrics?keys=reward,frac_reward_zero_std"
tail -n 3 "$out/metrics.csv"

save "$out/adapter.tar" "$jobs/$job/adapter"
tar --list --file "$out/adapter.tar"

save "$out/results.json" "$jobs/$job/results"
python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["verdict"]["sentence"])' "$out/results.json"
[ "$status" = succeeded ]
