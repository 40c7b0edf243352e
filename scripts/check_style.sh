#!/usr/bin/env bash
# The rules of docs/internals/design.md that a machine can check: format, names of files, ASCII, sizes (printed only).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

status=0
fault() { echo "style: $*"; status=1; }

mapfile -t sources < <(git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.cu')
clang-format --dry-run --Werror "${sources[@]}" 2>&1 | head -40
if [ "${PIPESTATUS[0]}" -ne 0 ]; then fault "run clang-format -i on the files above"; fi

while read -r path; do fault "$path: a file or folder is a noun of the domain, not utils/common/helpers/misc"; done \
  < <(git ls-files | grep -E '(^|/)(utils?|common|helpers?|misc)(\.|/|_|$)')
while read -r line; do fault "$line: not ASCII"; done \
  < <(grep -nP '[^\x00-\x7F]' "${sources[@]}" CMakeLists.txt cmake/* | cut -d: -f1,2 | head -20)
names=$(scripts/check_names.py) || fault "${names:-scripts/check_names.py failed}"
twins=$(scripts/check_twins.py) || fault "${twins:-scripts/check_twins.py failed}"
while read -r line; do fault "$line: a disabled test needs an issue and an owner"; done \
  < <(grep -nE 'DISABLED_' "${sources[@]}" | head)

# scripts/check_style.sh --tidy also runs clang-tidy over the torch-free sources (about 15 minutes on 2 cores).
if [ "${1:-}" = --tidy ]; then
  cmake --preset no-torch >/dev/null
  if ! git ls-files --cached --others --exclude-standard 'runtime/*.cc' 'launcher/*.cc' \
    'checkpoint_tools/*.cc' 'safetensors/*.cc' |
    xargs -P "$(nproc)" -I{} clang-tidy -p build-no-torch --quiet --extra-arg=-Wno-unknown-warning-option {} 2>/dev/null; then
    fault "mend what clang-tidy names above"
  fi
fi

echo "the ten largest sources:"
wc -l "${sources[@]}" | grep -v ' total$' | sort -rn | head -10
exit $status
