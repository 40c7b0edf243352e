#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds what the example needs, and runs it.
#
#   scripts/quickstart.sh [arguments for the digits example, for instance --epochs 3]
#
# The rest, the agent among it, is `cmake --build build` away.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/machine.sh

check_machine quickstart
echo "quickstart: step 1 of 3: Debian packages and LibTorch (one or two minutes, once)"
scripts/setup.sh

jobs=$(build_jobs)
cmake --preset release -DACCEL_BUILD_TESTS=OFF -DACCEL_BUILD_BENCH=OFF >/dev/null
echo "quickstart: step 2 of 3: launcher, shim, libaccel and the example ($jobs at a time; 2 to 4 minutes on two cores, once)"
NINJA_STATUS='quickstart: %u of %t files left, %es  ' cmake --build build --target accel-launch digits -j "$jobs"

if [ $# -eq 0 ]; then set -- --epochs 15; fi
echo "quickstart: step 3 of 3: two processes learn to read digits"
echo "+ build/bin/accel-launch --cpu --num_processes 2 build/examples/digits -- $*"
exec build/bin/accel-launch --cpu --num_processes 2 build/examples/digits -- "$@"
