#!/usr/bin/env bash
# The main job as a user runs it: two processes reach the accuracy that the README promises and leave
# checkpoints; a run that is resumed in its middle gives the same losses and accuracy as one in a piece.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
launch=("$ACCEL_BUILD_DIR/bin/accel-launch" --cpu --num_processes 2 "$ACCEL_BUILD_DIR/examples/digits" --)

fail() {
  echo "$1"
  tail -n 40 "$work"/*.out "$work"/*.err
  exit 1
}

run() {  # name, arguments of digits
  local name=$1
  shift
  "${launch[@]}" --project_dir "$work/$name" "$@" >"$work/$name.out" 2>>"$work/$name.err" ||
    fail "digits $* ended with $?"
}

checkpoints() { find "$work/$1/checkpoints" -name accel_checkpoint.json | wc -l; }

"$ACCEL_BUILD_DIR/examples/digits" --lr nan --epochs 1 >"$work/lr.out" 2>"$work/lr.err" && fail "a rate that is no number was taken"
grep -q -- '--lr: not a number: nan' "$work/lr.err" || fail "the rate is not named"

run main --epochs 15
tail -n 1 "$work/main.out" | grep -qE '^test accuracy (0\.9[789]|1\.0)' || fail "the accuracy is below 0.97"
[ "$(grep -c '^epoch .* loss ' "$work/main.out")" = 15 ] || fail "not one loss per epoch"
[ "$(checkpoints main)" = 3 ] || fail "$(checkpoints main) checkpoints are left, not the newest 3"
grep -q 'epoch 15' "$work/main.err" || fail "no progress on stderr"

run whole --epochs 4
cp -r "$work/whole" "$work/resumed"
rm -r "$work/resumed/checkpoints"/checkpoint_{2,3}
run resumed --epochs 4 --resume
grep -q "^going on from .*/checkpoints/checkpoint_1$" "$work/resumed.out" || fail "nothing was resumed"
diff <(grep '^epoch [34] ' "$work/whole.out") <(grep '^epoch' "$work/resumed.out") || fail "losses differ"
diff <(tail -n 1 "$work/whole.out") <(tail -n 1 "$work/resumed.out") || fail "the accuracy differs"

"${launch[@]}" --project_dir "$work/main" --epochs 1 >"$work/again.out" 2>"$work/again.err" &&
  fail "a run began in the project of a finished one"
grep -q 'overwrite' "$work/again.err" || fail "how to go on is not said"
[ "$(checkpoints main)" = 3 ] || fail "a run that was refused removed checkpoints"
run main --epochs 1 --overwrite
[ "$(checkpoints main)" = 1 ] || fail "a run from the beginning kept older checkpoints"
