#!/usr/bin/env bash
# The progress line of accel-launch as a person sees it, played by tmux: below whole lines of the workers, gone with the job, never
# beside a worker that draws a line of its own, never in a pipe; Ctrl-Z, Ctrl-C, notices, windows of another size.
set -euo pipefail
command -v tmux >/dev/null || { echo "SKIPPED: tmux is not installed"; exit 77; }
launch=$ACCEL_BUILD_DIR/bin/accel-launch
work=$(mktemp -d)
tmux=(tmux -L "accel-progress-$$" -f /dev/null)
trap '"${tmux[@]}" kill-server 2>/dev/null || true; rm -rf "$work"' EXIT

screen() { "${tmux[@]}" capture-pane -p -J -S -; }
fail() {
  echo "FAILED: $*" >&2
  screen >&2
  exit 1
}
type_in() { "${tmux[@]}" send-keys "$@"; }
see() {
  for _ in $(seq 300); do
    if screen | grep -qE "$1"; then return; fi
    sleep 0.1
  done
  fail "never saw '$1'"
}
not_there() { if screen | grep -qE "$1"; then fail "saw '$1'"; fi; }
run() {
  type_in "clear; $1" Enter
  "${tmux[@]}" clear-history
}

# Reports a step through the worker channel each 20 ms, until the file "go" is there; prints a numbered line for each tenth.
cat >"$work/steps.py" <<'END'
import mmap, os, struct, sys, time
rank, work = int(os.environ.get("RANK", "0")), sys.argv[1]
page = mmap.mmap(int(os.environ["ACCEL_CHANNEL"].split(":")[1]), 8192)
step = 0
while not os.path.exists(work + "/go"):
    step += 1
    sequence = 2 * step
    struct.pack_into("<Q", page, 64, sequence - 1)
    struct.pack_into("<QQQII", page, 72, step, time.monotonic_ns(), 0, 2, 0)
    struct.pack_into("<Q", page, 64, sequence)
    if step % 10 == 0 and "quiet" not in sys.argv:
        print(f"rank {rank} line {step // 10} of many ends here", flush=True)
    if "bar" in sys.argv and rank == 0:
        print(f"\r{step} bar", end="", flush=True)
    if "fail" in sys.argv and rank == 1 and step == 150 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(3)
    time.sleep(0.02)
if "bar" in sys.argv and rank == 0:
    print()
END
worker="$launch --num_processes 2 $work/steps.py $work"
line='step [0-9]+ \| [0-9.]+ steps/s .*\| 0:00:[0-9]{2}$'

"${tmux[@]}" new-session -d -x 100 -y 30 "env PS1='shell> ' PATH='$PATH' bash --norc --noprofile"
see '^shell> '

# It stands below the workers' lines, at the begin of a row; their lines stay whole and in order; afterwards nothing is left of it.
run "$worker; echo status \$?"
see "^$line"
see '^rank 1 line 20 of many ends here$'
touch "$work/go"
see '^status 0$'
not_there 'steps/s'
for rank in 0 1; do
  numbers=$(screen | sed -nE "s/^rank $rank line ([0-9]+) of many ends here\$/\1/p")
  [ "$numbers" = "$(seq "$(wc -l <<<"$numbers")")" ] || fail "lines of rank $rank are torn or lost"
done
if screen | grep '^rank' | grep -vqE '^rank [01] line [0-9]+ of many ends here$'; then fail 'a line is torn'; fi
rm "$work/go"

# Not in a pipe, not when it is switched off, by a flag or by the environment.
run "$worker quiet 2>$work/err; cat -v $work/err; echo status \$?"
sleep 3
touch "$work/go"
see '^status 0$'
not_there 'step [0-9]'
rm "$work/go"
for off in "$launch --progress_line off" "ACCEL_PROGRESS_LINE=off $launch"; do
  run "$off --num_processes 2 $work/steps.py $work quiet; echo status \$?"
  sleep 3
  not_there 'step [0-9]'
  touch "$work/go"
  see '^status 0$'
  rm "$work/go"
done

# A worker that draws a line of its own keeps it to itself.
run "$worker quiet bar; echo status \$?"
see '^1[0-9][0-9] bar$'
not_there 'steps/s'
touch "$work/go"
see '^status 0$'
rm "$work/go"

# Ctrl-Z erases it before the shell is there, and fg brings it back; Ctrl-C leaves nothing of it either.
run "$worker quiet"
see "^$line"
type_in C-z
see 'Stopped'
not_there 'steps/s'
type_in "fg" Enter
see "^$line"
type_in C-c
see '^accel-launch: stopped by SIGINT$'
see '^shell> *$'
not_there 'steps/s'
type_in 'echo status $?' Enter
see '^status 130$'

# A window of another size gets a line of its own width.
run "$worker quiet; echo status \$?"
see "^$line"
"${tmux[@]}" resize-window -x 24 -y 20
see '^step [0-9]+ \| [0-9.]+.*~$'
"${tmux[@]}" resize-window -x 100 -y 30
see "^$line"
touch "$work/go"
see '^status 0$'
rm "$work/go"

# A restart is told on a line of its own, and is counted.
run "$launch --max_restarts 1 --num_processes 2 $work/steps.py $work quiet fail; echo status \$?"
see '^accel-launch: rank 1 of 2 ended with exit code 3; restart 1 of 1$'
see '^step [0-9]+ \| .*1 restart \| 0:00:[0-9]{2}$'
touch "$work/go"
see '^status 0$'
not_there 'steps/s'
rm "$work/go"

# On: also before a worker has reported a step.
run "$launch --progress_line on --num_processes 2 --no_python sleep 4; echo status \$?"
see '^step - \| 0:00:0[0-9]$'
see '^status 0$'
not_there 'step -'

# Of two machines the first one shows the line, also past a restart and a Ctrl-Z; notices stand on lines of their own.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
machines="--cpu --num_machines 2 --num_processes 4 --main_process_ip 127.0.0.1 --main_process_port $port --max_restarts 1"
two() { echo "$launch $machines --machine_rank $1 $2 $work/steps.py $work quiet $3"; }
run "$(two 1 '--progress_line on' fail) >$work/other 2>&1 & $(two 0 '' fail); echo status \$?"
see '^accel-launch: .*restart 1 of 1 on all machines$'
see '^step [0-9]+ \| .*1 restart \| 0:00:[0-9]{2}$'
type_in C-z
see 'Stopped'
not_there 'steps/s'
type_in "fg" Enter
see '^step [0-9]+ \| [0-9.]+ steps/s .*1 restart \| 0:00:[0-9]{2}$'
touch "$work/go"
see '^shell> *$'
type_in 'echo ended with $?' Enter
see '^ended with 0$'
not_there 'steps/s'
rm "$work/go"
grep -q 'machine 0 shows the progress line, not this one' "$work/other" || fail "machine 1 says: $(cat "$work/other")"
run "$(two 1 '' '') >/dev/null 2>&1 & $(two 0 '' '')"
see "^$line"
type_in C-c
see '^accel-launch: the job was stopped: .*SIGINT'
see '^shell> *$'
not_there 'steps/s'
type_in 'echo status $?' Enter
see '^status 130$'
