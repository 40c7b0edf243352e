#!/usr/bin/env bash
# The rules of docs/design.md that a machine can check: format, names of files, ASCII, sizes (printed only).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

status=0
fault() { echo "style: $*"; status=1; }

mapfile -t sources < <(git ls-files '*.cc' '*.h' '*.cu')
clang-format --dry-run --Werror "${sources[@]}" 2>&1 | head -40
if [ "${PIPESTATUS[0]}" -ne 0 ]; then fault "run clang-format -i on the files above"; fi

while read -r path; do fault "$path: a file or folder is a noun of the domain, not utils/common/helpers/misc"; done \
  < <(git ls-files | grep -E '(^|/)(utils?|common|helpers?|misc)(\.|/|_|$)')
while read -r line; do fault "$line: not ASCII"; done \
  < <(grep -nP '[^\x00-\x7F]' "${sources[@]}" CMakeLists.txt cmake/* | cut -d: -f1,2 | head -20)
while read -r line; do fault "$line: a disabled test needs an issue and an owner"; done \
  < <(grep -nE 'DISABLED_' "${sources[@]}" | head)

# clang-tidy over the torch-free sources that the last commit changed and a slice of the others that moves with
# the seed; all of them with --long.
tidy_slice() {
  local file i=0
  git ls-files 'runtime/*.cc' 'launcher/*.cc' | while read -r file; do
    i=$((i + 1))
    if [ "${ACCEL_TEST_LONG:-0}" = 1 ] || [ $(((i + ${ACCEL_TEST_SEED:-1}) % 4)) -eq 0 ] ||
      ! git diff --quiet HEAD~1 HEAD -- "$file" 2>/dev/null; then
      echo "$file"
    fi
  done
}
cmake --preset no-torch >/dev/null
mapfile -t checked < <(tidy_slice)
echo "clang-tidy over ${#checked[@]} files"
if ! printf '%s\n' "${checked[@]}" |
  xargs -P "$(nproc)" -I{} clang-tidy -p build-no-torch --quiet --extra-arg=-Wno-unknown-warning-option {} 2>/dev/null; then
  fault "mend what clang-tidy names above"
fi

echo "the ten largest sources:"
wc -l "${sources[@]}" | grep -v ' total$' | sort -rn | head -10
exit $status
