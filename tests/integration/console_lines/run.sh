#!/usr/bin/env bash
# By default the console shows the lines of all ranks, unchanged and never mixed, each on its own stream.
set -euo pipefail
launch=$ACCEL_BUILD_DIR/bin/accel-launch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

# Eight writers, each line in two write()s; the lines to stderr carry the same numbers.
cat >"$work/writer.sh" <<'END'
for i in $(seq 300); do
  printf 'rank %s line %s ' "$RANK" "$i"
  printf 'to the end\n'
  printf 'rank %s error %s\n' "$RANK" "$i" >&2
done
END
"$launch" --cpu --num_processes 8 --no_python sh "$work/writer.sh" >"$work/out" 2>"$work/err"

grep -vE '^rank [0-7] line [0-9]+ to the end$' "$work/out" && fail "a line of stdout was changed or mixed"
grep -vE '^rank [0-7] error [0-9]+$|^accel-launch: ' "$work/err" && fail "a line of stderr was changed or mixed"
for rank in 0 1 2 3 4 5 6 7; do
  grep "^rank $rank " "$work/out" | awk '{ if ($4 != NR) exit 1 } END { if (NR != 300) exit 1 }' ||
    fail "rank $rank lost lines of stdout or their order"
  [ "$(grep -c "^rank $rank " "$work/err")" = 300 ] || fail "rank $rank lost lines of stderr"
done

# Bytes that are no text, and a last line without a newline.
printf 'a\0b\377\r\033[1mc' >"$work/bytes"
"$launch" --cpu --num_processes 1 --no_python cat "$work/bytes" >"$work/out"
cmp "$work/bytes" "$work/out" || fail "bytes were changed"

# A prompt appears although its line is not finished, and the answer gets in.
mkfifo "$work/answer"
"$launch" --cpu --num_processes 2 --no_python sh -c \
  'if [ "$RANK" = 0 ]; then printf "name? "; read -r name; echo "hello $name"; fi' \
  <"$work/answer" >"$work/prompt" &
exec 3>"$work/answer"
for _ in $(seq 600); do [ "$(cat "$work/prompt")" = "name? " ] && break; sleep 0.1; done
[ "$(cat "$work/prompt")" = "name? " ] || fail "the prompt did not appear"
echo you >&3
exec 3>&-
wait $!
[ "$(cat "$work/prompt")" = "name? hello you" ] || fail "input did not reach rank 0: $(cat "$work/prompt")"

# The other ranks read the end of file, at once.
"$launch" --cpu --num_processes 2 --no_python sh -c '[ "$RANK" = 0 ] || cat' <<<"for rank 0 only" >"$work/out"
[ ! -s "$work/out" ] || fail "rank 1 got input"

# One stream for stdout and stderr: in the order of the writes, in the file, on the console and in the report.
"$launch" --cpu --num_processes 2 --log_merge_stderr --log_dir "$work/merged" --no_python sh -c \
  'for i in 1 2 3; do echo "out $i"; echo "err $i" >&2; done; [ "$RANK" = 1 ] || exec sleep 1000; exit 3' >"$work/out" 2>"$work/err" || true
merged=$(for i in 1 2 3; do echo "out $i"; echo "err $i"; done)
[ "$(cat "$work"/merged/*/attempt_0/1/stdout.log)" = "$merged" ] || fail "merged: $(cat "$work"/merged/*/attempt_0/1/stdout.log)"
[ ! -e "$(echo "$work"/merged/*/attempt_0/1)/stderr.log" ] || fail "there is a stderr.log beside the merged stream"
grep -q 'err 3' "$work/out" || fail "merged output is not on stdout: $(cat "$work/out")"
grep -q 'err 3' "$work/err" || fail "the report does not show the end of the merged stream: $(cat "$work/err")"

# A prefix on request.
"$launch" --cpu --num_processes 2 --log_prefix --no_python sh -c 'echo "from $RANK"; echo "e$RANK" >&2' >"$work/out" 2>"$work/err"
[ "$(sort "$work/out")" = "$(printf '[r0 out] from 0\n[r1 out] from 1')" ] || fail "prefix: $(cat "$work/out")"
[ "$(sort "$work/err")" = "$(printf '[r0 err] e0\n[r1 err] e1')" ] || fail "prefix: $(cat "$work/err")"

# Teed streams are named as torchrun does, in the console alone.
TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE= "$launch" --cpu --num_processes 2 --tee 0:3,1:1 --log_dir "$work/teed" --no_python \
  sh -c 'echo "from $RANK"; echo "e$RANK" >&2' >"$work/out" 2>"$work/err"
[ "$(sort "$work/out")" = "$(printf '[default0]:from 0\n[default1]:from 1')" ] || fail "teed: $(cat "$work/out")"
[ "$(sort "$work/err")" = "$(printf '[default0]:e0\ne1')" ] || fail "teed: $(cat "$work/err")"
[ "$(cat "$work"/teed/*/attempt_0/1/stdout.log)" = "from 1" ] || fail "a prefix is in a file"
