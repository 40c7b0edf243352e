#!/usr/bin/env bash
# Installs the component safetensors alone, builds a project that only knows find_package(accel COMPONENTS safetensors), shows
# that its program needs no other library than a C++ program has, and copies a file with it. Without the component torch is
# asked for; a component that is not there is refused by its name.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
if grep -q '^ACCEL_SANITIZE:STRING=.' "$ACCEL_BUILD_DIR/CMakeCache.txt"; then
  echo "skipped: nobody ships a sanitizer's build"; exit 77
fi

cmake --install "$ACCEL_BUILD_DIR" --prefix "$work/prefix" --component safetensors >"$work/install.log"
cmake -S "$here" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" \
  >"$work/configure.log" || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build" >"$work/build.log" || { cat "$work/build.log"; exit 1; }

others=$(ldd "$work/build/tensor_copy" | grep -Ev 'linux-vdso|ld-linux|libstdc\+\+|libm\.|libgcc_s|libc\.|libpthread' || true)
[ -z "$others" ] || fail "the program needs more than the C++ library: $others"
if find "$work/prefix" -name '*.so*' | grep .; then fail "the component has shared libraries"; fi

header='{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}  '
{ printf '%b' "\\x$(printf '%x' ${#header})\\0\\0\\0\\0\\0\\0\\0"; printf '%sxyz' "$header"; } >"$work/in.safetensors"
out=$("$work/build/tensor_copy" "$work/in.safetensors" "$work/out.safetensors")
[ "$out" = "a U8 3" ] || fail "unexpected output: $out"
[ "$(tail -c 3 "$work/out.safetensors")" = xyz ] || fail "the copy has other data"
head -c 20 "$work/in.safetensors" >"$work/short.safetensors"
if "$work/build/tensor_copy" "$work/short.safetensors" "$work/none" 2>"$work/short.log"; then fail "a short file was read"; fi
grep -q 'safetensors.header' "$work/short.log" || fail "$(cat "$work/short.log")"

sed 's/COMPONENTS safetensors/COMPONENTS sockets/' "$here/CMakeLists.txt" >"$work/CMakeLists.txt"
cp "$here/tensor_copy.cc" "$work"
if cmake -S "$work" -B "$work/refused" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/refused.log" 2>&1; then
  fail "the component sockets was found"
fi
tr -s ' \n' ' ' <"$work/refused.log" | grep -q 'no component sockets' || fail "$(cat "$work/refused.log")"
sed 's/ COMPONENTS safetensors//' "$here/CMakeLists.txt" >"$work/CMakeLists.txt"
if cmake -S "$work" -B "$work/whole" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/whole.log" 2>&1; then
  fail "libaccel was found where it is not installed"
fi
tr -s ' \n' ' ' <"$work/whole.log" | grep -q 'installed here without libaccel' || fail "$(cat "$work/whole.log")"
