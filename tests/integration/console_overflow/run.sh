#!/usr/bin/env bash
# Fault 21: a flood into a console that nobody reads, with --log_overflow drop and sample. The workers come to their
# end, the shim stays small, and what is shown and what the markers say add up.
set -euo pipefail
launch=$ACCEL_BUILD_DIR/bin/accel-launch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

lines=2000000
bytes=$(seq "$lines" | wc -c)
for policy in drop sample; do
  mkfifo "$work/console"
  exec 3<>"$work/console" # somebody has it open, and does not read
  "$launch" --num_processes 2 --log_overflow $policy --no_python sh -c \
    'seq "$1"; grep -E "^(VmRSS|VmHWM)" "/proc/$PPID/status" >"$0.$RANK"; while [ ! -e "$0.go" ]; do sleep 0.05; done' \
    "$work/rank" "$lines" >"$work/console" 2>"$work/err" 3>&- &
  job=$!
  for rank in 0 1; do
    for _ in $(seq 1200); do [ -s "$work/rank.$rank" ] && break; sleep 0.05; done
    [ -s "$work/rank.$rank" ] || fail "$policy: rank $rank waits for a console that nobody reads"
    grown=$(awk '/VmHWM/ { print $2 }' "$work/rank.$rank")
    [ "$grown" -lt $((2 * 8192 + 16384)) ] || fail "$policy: the shim took $grown KiB"
  done
  exec 4<"$work/console" 3>&- # from here on there is a reader, and the end of the last writer is the end
  cat <&4 >"$work/out" &
  reader=$!
  touch "$work/rank.go"
  wait $job
  wait $reader
  exec 4<&-
  # Lines that are whole numbers, and the bytes of those that the markers count.
  sums=$(awk '/^\[accel: [0-9]+ bytes dropped\]$/ { marked += $2; next } { shown += length($0) + 1 } END { print shown + marked, marked }' \
    "$work/out")
  [ "${sums% *}" = $((2 * bytes)) ] || fail "$policy: shown and dropped are ${sums% *} bytes, written were $((2 * bytes))"
  [ "${sums#* }" -gt 0 ] || fail "$policy: nothing was dropped"
  grep -q 'stdout: does not keep up' "$work/err" || fail "$policy: no notice: $(cat "$work/err")"
  rm -rf "${work:?}"/*
done
