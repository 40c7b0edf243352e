#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds, and runs the main job.
#
#   scripts/quickstart.sh [arguments for the digits example, for instance --epochs 3]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup.sh
cmake --preset release -DACCEL_BUILD_TESTS=OFF -DACCEL_BUILD_BENCH=OFF >/dev/null
cmake --build build

if [ $# -eq 0 ]; then set -- --epochs 15; fi
echo "+ build/bin/accel-launch --cpu --num_processes 2 build/examples/digits -- $*"
exec build/bin/accel-launch --cpu --num_processes 2 build/examples/digits -- "$@"
