#!/usr/bin/env bash
# --log_dir, --tee and --redirects: byte-exact files for each rank, stream and attempt.
set -euo pipefail
launch=$ACCEL_BUILD_DIR/bin/accel-launch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

head -c 3000000 /dev/urandom >"$work/random"

# --log_dir alone: files, and the console as usual.
"$launch" --num_processes 2 --log_dir "$work/logs" --no_python sh -c \
  'if [ "$RANK" = 0 ]; then cat "$0"; else echo "rank 1" >&2; fi' "$work/random" >"$work/out" 2>"$work/err"
attempt=$(echo "$work"/logs/*/attempt_0)
cmp "$work/random" "$attempt/0/stdout.log" || fail "the log of rank 0 differs"
cmp "$work/random" "$work/out" || fail "the console differs"
[ "$(cat "$attempt/1/stderr.log")" = "rank 1" ] || fail "the log of rank 1 differs"
[ ! -s "$attempt/0/stderr.log" ] && [ ! -s "$attempt/1/stdout.log" ] || fail "a file should be empty"

# --redirects 3: files only.
"$launch" --num_processes 2 --log_dir "$work/redirected" --redirects 3 --no_python cat "$work/random" \
  >"$work/out" 2>"$work/err"
[ ! -s "$work/out" ] || fail "redirected output is on the console"
for rank in 0 1; do
  cmp "$work/random" "$work"/redirected/*/attempt_0/$rank/stdout.log || fail "the redirected log of $rank differs"
done

# --log_rotate_bytes: the files of a stream put together by the numbers in their names are the stream.
"$launch" --num_processes 2 --log_dir "$work/rotated" --redirects 3 --log_rotate_bytes 64K --log_keep 1000 --no_python \
  cat "$work/random" >"$work/out" 2>"$work/err"
for rank in 0 1; do
  folder=$(echo "$work"/rotated/*/attempt_0/$rank)
  cat $(ls -v "$folder"/stdout.log.*) "$folder/stdout.log" | cmp - "$work/random" || fail "fault 26: rank $rank lost bytes"
  [ "$(stat -c %s "$folder/stdout.log.65536")" = 65536 ] || fail "fault 26: a full file has another size"
done
"$launch" --num_processes 1 --log_dir "$work/kept" --redirects 3 --log_rotate_bytes 64K --log_keep 2 --no_python \
  cat "$work/random" >"$work/out" 2>"$work/err"
[ "$(ls "$work"/kept/*/attempt_0/0/ | grep -c '^stdout.log')" = 3 ] || fail "fault 26: not two full files are kept"

# Each attempt has its files; the error file of the worker lies beside them.
cat >"$work/restarted.sh" <<'END'
[ "$RANK" = 0 ] || [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exec sleep 1000
echo "attempt $TORCHELASTIC_RESTART_COUNT"
echo "$TORCHELASTIC_ERROR_FILE"
[ "$TORCHELASTIC_RESTART_COUNT" = 1 ]
END
"$launch" --num_processes 2 --max_restarts 1 --log_dir "$work/restarted" --no_python sh "$work/restarted.sh" \
  >"$work/out" 2>"$work/err"
for attempt in 0 1; do
  folder=$(echo "$work"/restarted/*/attempt_$attempt/0)
  [ "$(cat "$folder/stdout.log")" = "attempt $attempt
$folder/error.json" ] || fail "attempt $attempt: $(cat "$folder/stdout.log")"
done

# Without --log_dir: a folder that no other user can enter, another one for each launch; the console says which.
mkdir "$work/tmp"
for _ in 1 2; do
  TMPDIR=$work/tmp "$launch" --num_processes 2 --redirects 3 --no_python sh -c 'echo "rank $RANK"' 2>"$work/err"
  folder=$(sed -n 's/.*log files go to \([^ ]*\) .*/\1/p' "$work/err")
  [ "$(stat -c %a "$folder")" = 700 ] || fail "the folder of the logs: $(stat "$folder")"
  [ "$(cat "$folder"/*/attempt_0/1/stdout.log)" = "rank 1" ] || fail "rank 1 wrote no log: $(ls -R "$work/tmp")"
done
[ "$(find "$work/tmp" -mindepth 1 -maxdepth 1 | wc -l)" = 2 ] || fail "one folder for two launches: $(ls "$work/tmp")"
# As Python's tempfile, which makes torchrun's folder: a TMPDIR that is not there leads to /tmp, and the notice says so.
TMPDIR=$work/none "$launch" --redirects 3 --no_python sh -c 'echo there' 2>"$work/err" || fail "a TMPDIR that is not there: $(cat "$work/err")"
folder=$(sed -n 's/.*log files go to \([^ ]*\) .*/\1/p' "$work/err")
[[ $folder == /tmp/accel_logs-* ]] || fail "log files without a TMPDIR go to '$folder'"
[ "$(cat "$folder"/*/attempt_0/0/stdout.log)" = there ] || fail "no log in $folder"
rm -r "$folder"

# A folder that cannot be made is said before anything starts.
status=0
"$launch" --num_processes 1 --log_dir /proc/no-logs-here --no_python true 2>"$work/err" || status=$?
[ $status -ne 0 ] || fail "an impossible log folder was accepted"
grep -q 'log.unwritable' "$work/err" || fail "the error does not name the log folder: $(cat "$work/err")"
