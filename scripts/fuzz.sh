#!/usr/bin/env bash
# Runs every fuzz target of a build folder for a while, from the seeds in tests/fuzz/corpus.
#
#   scripts/fuzz.sh BUILD_DIR [SECONDS_PER_TARGET [NAME]...]      NAME: store for fuzz_store; all by default
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$1
seconds=${2:-60}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

start() {  # start TARGET: runs it with its own growing corpus
  local name; name=$(basename "$1")
  mkdir -p "$scratch/$name"
  local folders=("$scratch/$name")
  if [ -d "tests/fuzz/corpus/$name" ]; then folders+=("tests/fuzz/corpus/$name"); fi
  # Without weights by rarity: counting them took two thirds of the time of fuzz_proto, whose inputs reach the most code,
  # and found nothing more.
  "$1" -entropic=0 -max_total_time="$seconds" -seed="${ACCEL_TEST_SEED:-1}" -rss_limit_mb=2048 -timeout=10 \
    -artifact_prefix="$scratch/$name/" -print_final_stats=1 "${folders[@]}" >"$scratch/$name.log" 2>&1
}

report_failure() {
  local name=$1 input
  echo "$name: FAILED"
  tail -n 40 "$scratch/$name.log"
  for input in "$scratch/$name"/{crash,oom,timeout,leak}-*; do
    if [ -f "$input" ]; then echo "input (base64): $(base64 -w0 "$input" | head -c 4000)"; fi
  done
}

names=("${@:3}")
targets=("${names[@]/#/$folder/fuzz/fuzz_}")
if [ ${#names[@]} -eq 0 ]; then targets=("$folder"/fuzz/fuzz_*); fi
if [ ! -x "${targets[0]}" ]; then echo "fuzz.sh: no target in $folder/fuzz" >&2; exit 1; fi
status=0
width=$(nproc)
for ((first = 0; first < ${#targets[@]}; first += width)); do
  batch=("${targets[@]:first:width}")
  pids=()
  for target in "${batch[@]}"; do start "$target" & pids+=($!); done
  for i in "${!batch[@]}"; do
    name=$(basename "${batch[$i]}")
    if wait "${pids[$i]}"; then
      echo "$name: $(grep -E '^stat::number_of_executed_units' "$scratch/$name.log")"
    else
      status=1
      report_failure "$name"
    fi
  done
done
exit $status
