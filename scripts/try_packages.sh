#!/usr/bin/env bash
# Takes the two ways of a new user on a bare Debian or Ubuntu, as root, and says how long each took (docs/admin/install.md).
#
#   scripts/try_packages.sh DIST wheel     installs the launcher, launches a script on two processes, reads a failure: goal 60 s
#   scripts/try_packages.sh DIST tarball   installs libaccel, builds examples/standalone, trains on two processes: goal 300 s
#
# DIST is the folder that scripts/package.sh filled. What the distribution has to have (Python, a compiler) is installed before the
# clock starts; what comes from PyPI counts.
set -euo pipefail
fail() { echo "try_packages.sh: $*" >&2; exit 1; }
[ $# -eq 2 ] || fail "usage: scripts/try_packages.sh DIST wheel|tarball"
dist=$(realpath "$1")
sources=$(dirname "$(dirname "$(realpath "${BASH_SOURCE[0]}")")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DEBIAN_FRONTEND=noninteractive

install() { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 || fail "apt-get cannot install $*"; }

# launched PROGRAM ARGUMENT...: the exit status of a launch whose output goes to $work/out
launched() {
  local status=0
  "$@" >"$work/out" 2>&1 || status=$?
  echo "$status"
}

try_wheel() {
  install python3 python3-venv
  cd "$work"
  SECONDS=0
  python3 -m venv accel
  # shellcheck disable=SC1091
  . accel/bin/activate
  pip install --quiet --disable-pip-version-check "$dist"/accel_launch-*.whl
  echo 'import os; print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])' >train.py
  [ "$(launched accel-launch --cpu --num_processes 2 train.py)" = 0 ] || fail "the script does not start: $(cat out)"
  grep -q 'rank 1 of 2' out || fail "no output of rank 1: $(cat out)"
  echo 'import os; assert os.environ["RANK"] != "1", "the batch is empty"' >broken.py
  [ "$(launched accel-launch --cpu --num_processes 2 broken.py)" = 1 ] || fail "a failure has to end with status 1: $(cat out)"
  grep -q 'the batch is empty' out || fail "the report does not name the cause: $(cat out)"
  cat out
}

try_tarball() {
  # shellcheck source=scripts/packages.sh disable=SC1091
  . "$sources/scripts/packages.sh"
  install python3 python3-venv g++ cmake ninja-build
  cd "$work"
  SECONDS=0
  python3 -m venv torch
  torch/bin/pip install --quiet --disable-pip-version-check --no-deps "${ACCEL_TORCH_WHEELS[@]}"
  mkdir opt
  tar -C opt --strip-components=1 -xzf "$dist"/accel-*-torch*.tar.gz
  opt/libexec/accel/link-torch "$work/torch/bin/python" >/dev/null
  torch=$(echo "$work"/torch/lib/python3*/site-packages/torch)
  cmake -S "$sources/examples/standalone" -B build -G Ninja -DCMAKE_PREFIX_PATH="$work/opt" -DACCEL_TORCH_ROOT="$torch" >/dev/null
  cmake --build build >/dev/null
  [ "$(launched opt/bin/accel-launch --cpu --num_processes 2 build/train)" = 0 ] || fail "the training failed: $(cat out)"
  grep -q 'processes 2' out || fail "two processes were asked for: $(cat out)"
  cat out
}

case $2 in
  wheel) try_wheel ;;
  tarball) try_tarball ;;
  *) fail "unknown package '$2' (known: wheel tarball)" ;;
esac
echo "$2: $SECONDS s"
