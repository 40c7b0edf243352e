#!/usr/bin/env bash
# Writes the pages of docs/ that come from tables in the code. A test fails when one is stale.
#
#   scripts/generate_docs.sh [BUILD_DIR]    (build by default; it must be configured)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build}
cmake --build "$build" --target accel-docs
"$build/tools/accel-docs" .
