#!/usr/bin/env bash
# Tries libaccel on a machine with a GPU, and writes what was seen. docs/guides/gpus.md says what each check is.
#
#   scripts/gpu_check.sh --pack [FOLDER]   puts what a run needs into FOLDER (build-gpu): at most 60 MB, without LibTorch and the driver
#   scripts/gpu_check.sh [OPTION]...       runs the checks of FOLDER; FOLDER/gpu_check.sh is the same script
#
#   --folder FOLDER   what --pack made (default: beside this script, else build-gpu)
#   --torch FOLDER    the torch package with CUDA (default: that of python3, else .deps/torch)
#   --report FOLDER   where report.json and report.md are written (default: the working folder)
#   --seconds N       when the run is over, whatever is left (default 540)
#   --cpu             the same on the CPU: tries the folder, no GPU
#   --no-build        --pack of what build/ holds now
#   --limit-mb N      of --pack (default 60)
#
# Exits with 0: all checks passed; 1: one failed; 77: there is no GPU, nothing was run; 2: wrong arguments.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fail() { echo "gpu_check.sh: $*" >&2; exit 2; }

folder="" torch="" report=. seconds=540 limit_mb=60 pack=no with_build=yes cpu=()
while [ $# -gt 0 ]; do
  case $1 in
    --pack) pack=yes; if [ $# -gt 1 ] && [[ $2 != --* ]]; then folder=$2; shift; fi ;;
    --folder | --torch | --report | --seconds | --limit-mb)
      [ $# -gt 1 ] || fail "$1 needs a value"
      name=${1#--}; printf -v "${name//-/_}" %s "$2"; shift ;;
    --cpu) cpu=(--cpu) ;;
    --no-build) with_build=no ;;
    *) fail "unknown argument '$1' (see the head of this script)" ;;
  esac
  shift
done

# The libraries that a file asks for, but for those of the system's C and C++, of LibTorch and of NVIDIA.
needed_by() {
  ldd "$1" | awk '$2 == "=>" && $3 ~ "^/" {print $3}' |
    grep -vE '/(torch|nvidia|cuda[^/]*)/|/lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s|accel)\.so' || true
}

make_pack() {
  local build work size program library
  cd "$here/.."
  build=${ACCEL_BUILD_DIR:-build}
  folder=${folder:-build-gpu}
  [ "$with_build" = no ] || cmake --build "$build" --target gpu_checks accel_cuda accel-launch-static accel-shim-static
  work=$folder.new
  rm -rf "$work"
  mkdir -p "$work/bin" "$work/lib"
  strip -o "$work/bin/gpu_checks" "$build/tests/gpu_checks"
  for program in accel-launch accel-shim; do strip -o "$work/bin/$program" "$build/static/$program-static"; done
  ln -s accel-launch "$work/bin/accel-torchrun"
  strip -o "$work/lib/libaccel.so.0" "$build/libaccel/libaccel.so.0"
  strip -o "$work/lib/libaccel_cuda.so" "$build/libaccel/libaccel_cuda.so"
  while read -r library; do
    cp -L "$library" "$work/lib/"
  done < <({ needed_by "$build/tests/gpu_checks"; needed_by "$build/libaccel/libaccel.so.0"; } | sort -u)
  cp scripts/gpu_check.sh tests/gpu/run_checks.py "$work/"
  git rev-parse HEAD >"$work/commit" 2>/dev/null || echo unknown >"$work/commit"
  size=$(du -s --apparent-size --block-size=1000000 "$work" | cut -f1)
  if [ "$size" -gt "$limit_mb" ]; then
    du -a --apparent-size --block-size=1000 "$work" | sort -rn | head -5 >&2
    echo "gpu_check.sh: $work has $size MB, more than $limit_mb" >&2
    exit 1
  fi
  rm -rf "$folder"
  mv "$work" "$folder"
  echo "$folder: $size MB"
}

if [ "$pack" = yes ]; then make_pack; exit 0; fi

if [ -z "$folder" ]; then
  folder=$here
  [ -e "$folder/bin/gpu_checks" ] || folder=$here/../build-gpu
fi
[ -x "$folder/bin/gpu_checks" ] || fail "there is no $folder/bin/gpu_checks: make it with --pack"
if [ -z "$torch" ]; then
  torch=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")')
fi
if [ -z "$torch" ]; then
  for found in "$here"/../.deps/torch/lib/python3*/site-packages/torch; do torch=$found; done
fi
[ -e "$torch/lib/libtorch_cpu.so" ] || fail "there is no torch package in '$torch': name one with --torch"
exec python3 "$folder/run_checks.py" --folder "$folder" --torch "$torch" --report "$report" --seconds "$seconds" "${cpu[@]}"
