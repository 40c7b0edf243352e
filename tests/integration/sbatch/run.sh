#!/usr/bin/env bash
# The scripts of deploy/slurm pass SLURM's notice on to the launcher, end as it ends, and requeue only a job whose ranks
# have all saved. Launcher and scontrol are played by scripts; a real slurmctld is not needed for that.
set -euo pipefail
fail() { echo "FAILED: $*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
cat >"$work/bin/accel-launch" <<'STUB'
#!/bin/bash
printf '%s\n' "$@" >"$WORK/arguments"
trap 'exit "$ON_NOTICE"' USR1
trap 'exit 143' TERM
touch "$WORK/started"
while :; do sleep 0.02; done
STUB
printf '#!/bin/bash\necho "$@" >>"$WORK/scontrol"\n' >"$work/bin/scontrol"
chmod 755 "$work"/bin/*
export WORK=$work SLURM_JOB_ID=7 SLURM_CPUS_ON_NODE=3 PATH=$work/bin:$PATH
unset SLURM_GPUS_ON_NODE PROCESSES_PER_NODE

# run SCRIPT SIGNAL: sets `status`.
run() {
  rm -f "$work/started" "$work/scontrol"
  bash "$ACCEL_SOURCE_DIR/deploy/slurm/$1" ./train --epochs 3 >"$work/out" 2>&1 &
  local script=$!
  while [ ! -e "$work/started" ]; do kill -0 $script || fail "$1 did not start: $(cat "$work/out")"; done
  kill "-$2" $script
  wait $script && status=0 || status=$?
}

export ON_NOTICE=85
run one_node.sbatch USR1
[ $status = 85 ] || fail "one_node.sbatch ended with $status after the notice"
grep -qx 3 "$work/arguments" || fail "not one process for each core: $(cat "$work/arguments")"
[ "$(tail -n 3 "$work/arguments" | tr '\n' ' ')" = "./train --epochs 3 " ] || fail "the program's arguments are lost"

run requeue.sbatch USR1
[ $status = 85 ] || fail "requeue.sbatch ended with $status after the notice"
[ "$(cat "$work/scontrol")" = "requeue 7" ] || fail "the job was not queued again"

ON_NOTICE=143
run requeue.sbatch USR1
[ $status = 143 ] || fail "requeue.sbatch ended with $status without a save"
[ ! -e "$work/scontrol" ] || fail "a job that did not save was queued again"

run requeue.sbatch TERM
[ $status = 143 ] || fail "requeue.sbatch ended with $status after SIGTERM"
