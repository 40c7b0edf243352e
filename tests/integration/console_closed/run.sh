#!/usr/bin/env bash
# A console that is closed, full or slow does not end the job (docs/reference/faults.md 17, 22, 25).
set -euo pipefail
launch=$ACCEL_BUILD_DIR/bin/accel-launch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

# `| head -1`: nobody reads any more, and the workers go on to their end.
"$launch" --num_processes 2 --no_python sh -c \
  'for i in $(seq 2000); do echo "line $i"; done; echo done >"$0.$RANK"' "$work/rank" 2>/dev/null | head -1 >"$work/out"
[ "$(cat "$work/out")" = "line 1" ] || fail "the first line is $(cat "$work/out")"
for rank in 0 1; do [ -s "$work/rank.$rank" ] || fail "rank $rank did not come to its end"; done

# A full disk behind stdout: the workers go on, and the user is told.
"$launch" --num_processes 1 --no_python sh -c 'seq 100000; echo done >"$0"' "$work/rank.full" \
  >/dev/full 2>"$work/err"
[ -s "$work/rank.full" ] || fail "a worker stopped at a full disk"
grep -q 'No space left on device' "$work/err" || fail "no notice of the full disk: $(cat "$work/err")"

# A descendant that keeps the worker's stdout open does not keep the job (after --linger it is ended).
"$launch" --num_processes 1 --no_python sh -c 'echo before; setsid sleep 1000 & echo after' >"$work/out" 2>"$work/err" || true
[ "$(cat "$work/out")" = "before
after" ] || fail "output beside a descendant: $(cat "$work/out")"

# A reader that starts late gets everything.
"$launch" --num_processes 4 --no_python seq 100000 2>/dev/null | { sleep 0.5; sort -n; } >"$work/out"
seq 100000 | awk '{ for (i = 0; i < 4; ++i) print }' | cmp - "$work/out" || fail "a slow reader lost lines"
