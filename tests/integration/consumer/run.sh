#!/usr/bin/env bash
# Installs accel into a folder, builds examples/standalone, which only knows find_package(accel), and runs it on 2 ranks. The same in C and Fortran, by
# find_package(accel) and by pkg-config.
# Then shows that another version of torch is refused with both versions named.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
standalone=$ACCEL_SOURCE_DIR/examples/standalone
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$ACCEL_BUILD_DIR" --prefix "$work/prefix" >"$work/install.log"
cmake -S "$standalone" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" \
  >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build" >"$work/build.log" || { cat "$work/build.log"; exit 1; }

out=$("$work/prefix/bin/accel-launch" --cpu --num_processes 2 "$work/build/train")
if ! grep -qx 'processes 2' <<<"$out" || ! grep -qxE 'slope (2|2\.00.*|1\.99.*) offset (1|1\.00.*|0\.99.*)' <<<"$out"; then
  printf 'unexpected output:\n%s\n' "$out"
  exit 1
fi

expected=$'rank 0 of 2: sum 3\nrank 1 of 2: sum 3'
check() {
  out=$("$work/prefix/bin/accel-launch" --cpu --num_processes 2 "$1" | tr -s ' ' | sort)
  if [ "$out" != "$expected" ]; then printf 'unexpected output of %s:\n%s\n' "$1" "$out"; exit 1; fi
}
cmake -S "$here/c" -B "$work/c" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" || {
  cat "$work/configure.log"; exit 1; }
cmake --build "$work/c" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
check "$work/c/consumer"
for program in pkg-config gcc gfortran; do
  command -v $program >/dev/null || { echo "$program is not installed; run scripts/setup.sh --tests"; exit 1; }
done
export PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig"
# shellcheck disable=SC2046  # words of a command line
gcc -std=c99 -pedantic -Wall -Werror "$here/c/main.c" $(pkg-config --cflags --libs accel) -o "$work/by_pkg_config"
check "$work/by_pkg_config"
mkdir "$work/modules"
# shellcheck disable=SC2046
gfortran -J "$work/modules" $(pkg-config --variable=fortran_module accel) "$here/c/main.f90" \
  $(pkg-config --libs accel) -o "$work/in_fortran"
check "$work/in_fortran"

mkdir -p "$work/other/torch"
echo "__version__ = '2.10.0+cpu'" >"$work/other/torch/version.py"
if cmake -S "$standalone" -B "$work/refused" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DACCEL_TORCH_ROOT="$work/other/torch" >"$work/refused.log" 2>&1; then
  echo "torch 2.10.0 was accepted"; exit 1
fi
tr -s ' \n' ' ' <"$work/refused.log" | grep -q 'built for torch 2.11.0, but .* is torch 2.10.0' || {
  cat "$work/refused.log"; exit 1; }
