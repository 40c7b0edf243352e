#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test, stage by stage, each within its minutes.
#
#   scripts/test.sh [--long] [--budget SECONDS] [--seed N] [--stage NAME]...
#
#   --long      the whole of every rotating matrix instead of this commit's slice
#   --budget    seconds for each rotating matrix (default 60)
#   --seed      which slice (default: from the commit's hash)
#   --stage     run only this stage (repeatable): setup build style unit peer fault asan tsan fuzz
#
# docs/testing.md says what each stage holds. A stage may use the minutes that stages before it left; one that ends later
# than its share and theirs fails, so that somebody looks.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export ACCEL_TEST_LONG=0 ACCEL_TEST_BUDGET=60
ACCEL_TEST_SEED=$((16#$(git rev-parse --short=7 HEAD 2>/dev/null || echo 1)))
export ACCEL_TEST_SEED
only=()
while [ $# -gt 0 ]; do
  case $1 in
    --long) ACCEL_TEST_LONG=1; shift ;;
    --budget) ACCEL_TEST_BUDGET=$2; shift 2 ;;
    --seed) ACCEL_TEST_SEED=$2; shift 2 ;;
    --stage) only+=("$2"); shift 2 ;;
    *) echo "test.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
done

jobs=$(nproc)
passed=0
failed=0
spare=0  # seconds that the stages so far left
failures=()
summary=()
fallen=$(mktemp)  # the names of tests that failed, and what each said last
trap 'rm -f "$fallen"' EXIT

wanted() {
  [ ${#only[@]} -eq 0 ] && return 0
  local stage
  for stage in "${only[@]}"; do [ "$stage" = "$1" ] && return 0; done
  return 1
}

# stage NAME MINUTES FUNCTION
stage() {
  local name=$1 minutes=$2 run=$3 started=$SECONDS status=0 took left verdict=passed
  wanted "$name" || return 0
  remarks=
  echo
  echo "=== $name (at most $minutes min and the $((spare / 60)) that are left over)"
  "$run" || status=$?
  took=$((SECONDS - started))
  left=$((spare + minutes * 60 - took))
  spare=$((left > 0 ? left : 0))
  if [ $status -ne 0 ]; then
    verdict="FAILED ($status)"
  elif [ $ACCEL_TEST_LONG = 0 ] && [ $left -lt 0 ]; then
    verdict="FAILED ($((-left)) s late)"
  fi
  if [ "$verdict" = passed ]; then passed=$((passed + 1)); else failed=$((failed + 1)); failures+=("$name"); fi
  summary+=("$(printf '%-8s %4d s of %4d s  %s%s' "$name" "$took" $((minutes * 60)) "$verdict" "$remarks")")
}

run_ctest() {  # run_ctest BUILD_DIR JOBS -L|-R PATTERN
  ctest --test-dir "$1" -j "$2" "$3" "$4" --output-on-failure --no-tests=error | tee "$1/ctest.out"
  local status=${PIPESTATUS[0]}
  note_remarks "$1/ctest.out"
  note_fallen "$1/ctest.out" >>"$fallen"
  return "$status"
}

note_remarks() {  # note_remarks CTEST_OUTPUT: who failed, and the slowest; the lines end in "... Passed   12.34 sec"
  remarks=$(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*\*\*\*.*/\1/p' "$1" | paste -sd, - | sed -E 's/^./: &/')
  remarks+=$(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*/\2 \1/p' "$1" | sort -rn | head -3 |
    awk '{printf "%s%s %d s", NR == 1 ? "; " : ", ", $2, $1}')
}

# note_fallen CTEST_OUTPUT: each test that failed with the last lines of its output, so that they stand at the end of a report
# of which only the end is kept.
note_fallen() {
  awk 'function tell(  i) { if (!name) return; print name; for (i = count > 40 ? count - 40 : 0; i < count; ++i) print "    " said[i] }
    /^ *([0-9]+\/[0-9]+ Test +#| *Start +[0-9]+:|[0-9]+% tests passed)/ { tell(); name = ""; count = 0 }
    /^ *[0-9]+\/[0-9]+ Test +#.*\*\*\*/ { name = $0; next }
    name && NF && !/^\[ +(RUN|OK) +\]|^\[-+\]/ { said[count++] = substr($0, 1, 200) }
    END { tell() }' "$1"
}

setup() { scripts/setup.sh --tests; }
build() { cmake --preset release -DACCEL_BUILD_TESTS=ON -DACCEL_BUILD_BENCH=ON >/dev/null && cmake --build build; }
style() { scripts/check_style.sh; }
unit() { run_ctest build "$jobs" -L '^(unit|integration|hostile)$'; }
peer() { run_ctest build 1 -L '^peer$'; }
fault() { run_ctest build 1 -L '^fault$'; }
sanitized() {  # sanitized PRESET TARGETS TEST...: builds these tests with the other targets, and runs them
  local preset=$1 targets=$2 tests test
  shift 2
  tests=$(IFS='|'; echo "$*")
  for test in "$@"; do [[ $test != *_test ]] || targets+=" $test"; done
  # shellcheck disable=SC2086  # a list of targets
  cmake --preset "$preset" >/dev/null &&
    cmake --build "build-$preset" --target accel-launch accel-shim $targets &&
    run_ctest "build-$preset" "$jobs" -R "^($tests)$"
}
asan() {
  UBSAN_OPTIONS=print_stacktrace=1 sanitized asan 'accel accel-agent accel_cluster fault_worker' \
    runtime_test supervisor_test launcher_test coordinator_test collectives_test remote_shards_test agent_test agent elastic
}
tsan() { TSAN_OPTIONS=halt_on_error=1 sanitized tsan '' runtime_test supervisor_test collectives_test remote_shards_test; }
fuzz() { cmake --preset fuzz >/dev/null && cmake --build build-fuzz && scripts/fuzz.sh build-fuzz; }

stage setup 4 setup
if [ $failed -eq 0 ]; then stage build 36 build; fi
if [ $failed -eq 0 ]; then
  stage style 1 style
  stage unit 14 unit
  stage peer 5 peer
  stage fault 6 fault
  stage asan 15 asan
  stage tsan 7 tsan
  stage fuzz 11 fuzz
fi

echo
cat "$fallen"
printf '%s\n' "${summary[@]}"
if [ $failed -gt 0 ]; then echo "failed: ${failures[*]}"; fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
