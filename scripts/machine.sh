# What this machine can do: sourced by quickstart.sh and test.sh.
# shellcheck shell=bash

# The memory that a compiler of LibTorch's headers takes at most, in MiB; several sources are compiled together.
ACCEL_COMPILER_MIB=2500
# What packages, LibTorch and a build take on the disk of the checkout, in MiB.
ACCEL_DISK_MIB=5000

available_mib() { awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo; }

# How many compilers fit: one a core, fewer where memory is short, one at least.
build_jobs() {
  local cores fit
  cores=$(nproc)
  fit=$(($(available_mib) / ACCEL_COMPILER_MIB))
  echo $((fit < 1 ? 1 : fit < cores ? fit : cores))
}

# check_machine NAME: stops before anything is installed where the rest cannot succeed. NAME begins the messages.
check_machine() {
  local name=$1 disk memory
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "$name: this system has no apt: accel is built on Debian 12 and its relatives." >&2
    echo "$name: install what scripts/packages.sh lists by other means, then: cmake --preset release && cmake --build build" >&2
    return 1
  fi
  disk=$(df -Pm . | awk 'NR == 2 { print $4 }')
  if [ ! -d .deps/torch ] && [ "$disk" -lt $ACCEL_DISK_MIB ]; then
    echo "$name: $disk MiB are free in $PWD, $ACCEL_DISK_MIB are needed (LibTorch alone takes 1300)." >&2
    echo "$name: free some, or clone into another file system" >&2
    return 1
  fi
  memory=$(available_mib)
  if [ "$memory" -lt $ACCEL_COMPILER_MIB ]; then
    echo "$name: only $memory MiB of memory are free, and a compiler may take $ACCEL_COMPILER_MIB: close other programs, or expect it to be slow or killed" >&2
  fi
}
