#!/usr/bin/env bash
# Makes the pictures of docs/pictures/ anew, from real runs of the programs in build/: scripts/record_pictures.sh
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${ACCEL_BUILD_DIR:-$source_dir/build}
out=${1:-$source_dir/docs/pictures}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

cat >train.py <<'PYTHON'
import os, time

rank = int(os.environ["RANK"])
shard = f"shards/train-{rank:05}.bin"
print(f"rank {rank}: reading {shard}", flush=True)
if rank == 1:
    open(shard)
time.sleep(60)
PYTHON
mkdir shards
touch shards/train-00000.bin

record() { "$source_dir/.deps/peer/bin/python" -B "$source_dir/scripts/record_terminal.py" "$@"; }
mkdir -p "$out"
record "$out/failure.svg" --columns 84 --shown "accel-launch --cpu --num_processes 2 train.py" --replace "$work=/home/you" -- \
  "$build/bin/accel-launch" --cpu --num_processes 2 train.py
record "$out/run.svg" --columns 84 --shown "accel-launch --cpu --num_processes 2 build/examples/digits -- --epochs 3" -- \
  "$build/bin/accel-launch" --cpu --num_processes 2 "$build/examples/digits" -- --epochs 3
