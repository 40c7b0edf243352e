#!/usr/bin/env bash
# What a person at a terminal sees, played by tmux: isatty, size, prompts, input, Ctrl-C, Ctrl-Z and fg.
set -euo pipefail
command -v tmux >/dev/null || { echo "SKIPPED: tmux is not installed"; exit 77; }
launch=$ACCEL_BUILD_DIR/bin/accel-launch
work=$(mktemp -d)
tmux=(tmux -L "accel-test-$$" -f /dev/null)
trap '"${tmux[@]}" kill-server 2>/dev/null || true; rm -rf "$work"' EXIT

screen() { "${tmux[@]}" capture-pane -p -J -S -; }
fail() {
  echo "FAILED: $*" >&2
  screen >&2
  exit 1
}
type_in() { "${tmux[@]}" send-keys "$@"; }
# Waits until the screen has a line that matches.
see() {
  for _ in $(seq 300); do
    if screen | grep -qE "$1"; then return; fi
    sleep 0.1
  done
  fail "never saw '$1'"
}
# Runs a command line in the shell of the terminal; what it printed before is cleared.
run() {
  type_in "clear; $1" Enter
  "${tmux[@]}" clear-history
}

"${tmux[@]}" new-session -d -x 100 -y 30 "env PS1='shell> ' PATH='$PATH' bash --norc --noprofile"
see '^shell> '

# Rank 0 has a terminal of the same size, the others have none; --no_pty takes it away.
cat >"$work/who.sh" <<'END'
test -t 0 && test -t 1 && test -t 2 && mine=terminal || mine=none
echo "rank $RANK: $mine $(stty size 2>/dev/null)"
END
run "$launch --num_processes 2 --no_python sh $work/who.sh"
see '^rank 0: terminal 30 100$'
see '^rank 1: none *$'
run "$launch --num_processes 2 --no_pty --no_python sh $work/who.sh"
see '^rank 0: none *$'

# A prompt is visible before the answer, and the answer reaches rank 0 alone.
cat >"$work/ask.sh" <<'END'
if [ "$RANK" = 0 ]; then read -r -p 'name? ' name; echo "hello $name"; else cat; fi
END
run "$launch --num_processes 2 --no_python bash $work/ask.sh"
see '^name\? *$'
type_in 'you' Enter
see '^hello you$'
see '^shell> '

# Ctrl-D is the end of the input.
run "$launch --num_processes 2 --no_python sh -c 'test \$RANK = 1 || { cat; echo end of input; }'; echo status \$?"
sleep 0.5
type_in 'typed' Enter
see '^typed$'
type_in C-d
see '^end of input$'
see '^status 0$'

# A worker alone has the terminal itself: job control of its own works, and stty says where it is.
run "$launch --num_processes 1 --no_python bash -c 'read -r -p \"alone? \" x; echo \"\$x on \$(tty)\"'; echo status \$?"
see '^alone\? *$'
type_in 'yes' Enter
see '^yes on /dev/pts/[0-9]+$'
see '^status 0$'

# Ctrl-C ends the ranks, and the launcher with 130; it dies of SIGINT, so the shell does not go on with the line.
run "$launch --num_processes 2 --no_python sh -c 'echo rank \$RANK runs; sleep 1000'; echo went on"
see '^rank 0 runs$'
see '^rank 1 runs$'
type_in C-c
see '^shell> *$'
if screen | grep -q '^went on$'; then fail 'the shell went on after Ctrl-C'; fi
type_in 'echo status $?' Enter
see '^status 130$'

# Ctrl-Z gives the shell back, fg goes on.
for ranks in 1 2; do
  run "$launch --num_processes $ranks --no_python sh -c 'echo rank \${RANK:-0} runs; until [ -e $work/go ]; do sleep 0.1; done; echo rank \${RANK:-0} ends'; echo first status \$?"
  see '^rank 0 runs$'
  type_in C-z
  see '^first status [0-9]+$'
  see 'Stopped'
  touch "$work/go"
  type_in "fg; echo second status \$?" Enter
  see '^rank 0 ends$'
  see '^second status 0$'
  rm "$work/go"
done

# A window of another size reaches rank 0.
run "$launch --num_processes 2 --no_python bash -c 'test \$RANK = 1 || { trap \"stty size; exit\" WINCH; echo ready; while :; do sleep 0.1; done; }'; echo status \$?"
see '^ready$'
"${tmux[@]}" resize-window -x 120 -y 40
see '^40 120$'
see '^status 0$'
