#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test, stage by stage, each within its minutes.
#
#   scripts/test.sh [--long] [--budget SECONDS] [--minutes N] [--seed N] [--stage NAME]...
#
#   --long      everything: the whole of every rotating matrix, and no limit of time
#   --budget    seconds for each rotating matrix (default 60)
#   --minutes   when the run has ended, whatever the machine (default 80; CI stops it after 90)
#   --seed      which slices (default: from the commit's hash)
#   --stage     run only this stage (repeatable): setup build style alone unit peer fault asan tsan fuzz
#
# docs/internals/testing.md says what each stage holds. The minutes of a stage are those of an ordinary machine, and count more on a slower
# one: how much slower is measured once, by compiling LibTorch's headers. A stage may use the minutes that earlier
# stages left; exceeding both fails the run. The sanitizers and the fuzzers come last and take turns in the time that is left; the
# report says what a run left out.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/machine.sh

export ACCEL_TEST_LONG=0 ACCEL_TEST_BUDGET=60
ACCEL_TEST_SEED=$((16#$(git rev-parse --short=7 HEAD 2>/dev/null || echo 1)))
export ACCEL_TEST_SEED
only=()
minutes=80
while [ $# -gt 0 ]; do
  case $1 in
    --long) ACCEL_TEST_LONG=1; shift ;;
    --budget) ACCEL_TEST_BUDGET=$2; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    --seed) ACCEL_TEST_SEED=$2; shift 2 ;;
    --stage) only+=("$2"); shift 2 ;;
    *) echo "test.sh: unknown argument '$1'" >&2; exit 2 ;;
  esac
done

ordinary_unit=20     # seconds for LibTorch's headers on an ordinary machine
ordinary_minutes=55  # for a whole run there
jobs=$(build_jobs)
fuzz_seconds=30  # of each target
slowness=100  # percent of an ordinary machine's time
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

# seconds_here MINUTES: so many of an ordinary machine, in seconds of this one
seconds_here() { echo $(($1 * 60 * slowness / 100)); }

# time_left: seconds until the run has to be over
time_left() {
  local left=$((minutes * 60 - SECONDS))
  if [ "$ACCEL_TEST_LONG" = 1 ]; then left=1000000; fi
  echo $((left > 1 ? left : 1))
}

limited() { timeout --kill-after=30 "$(time_left)" "$@"; }

# How long LibTorch's headers take: what most of a build is made of.
measure_machine() {
  local began unit torch
  torch=$(echo .deps/torch/lib/python3*/site-packages/torch/include)
  began=$(date +%s%N)
  echo '#include <torch/torch.h>' |
    g++ -std=c++20 -fsyntax-only -x c++ -isystem "$torch" -isystem "$torch/torch/csrc/api/include" - || return 0
  unit=$((($(date +%s%N) - began) / 1000000))
  slowness=$((unit / ordinary_unit / 10))
  slowness=$((slowness < 100 ? 100 : slowness > 400 ? 400 : slowness))
  echo "one unit (LibTorch's headers): $unit ms; the minutes of an ordinary machine count $slowness % here"
}

# stage NAME MINUTES FUNCTION; MINUTES may be "rest": what takes turns ends in time by itself
stage() {
  local name=$1 run=$3 share started=$SECONDS status=0 took left verdict=passed
  wanted "$name" || return 0
  share=$([ "$2" = rest ] && time_left || seconds_here "$2")
  remarks=
  echo
  echo "=== $name (at most $share s and the $spare that are left over)"
  "$run" || status=$?
  took=$((SECONDS - started))
  left=$((spare + share - took))
  spare=$((left > 0 ? left : 0))
  if [ $status -ne 0 ]; then
    verdict="FAILED ($status)"
  elif [ "$ACCEL_TEST_LONG" = 0 ] && [ $left -lt 0 ]; then
    verdict="FAILED ($((-left)) s late)"
  fi
  if [ "$verdict" = passed ]; then passed=$((passed + 1)); else failed=$((failed + 1)); failures+=("$name"); fi
  summary+=("$(printf '%-8s %4d s of %4d s  %s%s' "$name" "$took" "$share" "$verdict" "$remarks")")
}

run_ctest() {  # run_ctest BUILD_DIR JOBS -L|-R PATTERN
  limited ctest --test-dir "$1" -j "$2" "$3" "$4" --output-on-failure --no-tests=error | tee "$1/ctest.out"
  local status=${PIPESTATUS[0]}
  note_remarks "$1/ctest.out"
  note_fallen "$1/ctest.out" >>"$fallen"
  return "$status"
}

# note_remarks CTEST_OUTPUT: who failed, and the three slowest; the lines end in "... Passed   12.34 sec"
note_remarks() {
  local names
  names=$(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*\*\*\*.*/\1/p' "$1" | paste -sd, -)
  remarks+=${names:+": $names"}
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

setup() { check_machine test.sh && scripts/setup.sh --tests; }
build() {
  # A test may take longer where everything does.
  cmake --preset release -DACCEL_BUILD_TESTS=ON -DACCEL_BUILD_BENCH=ON -DACCEL_TIMEOUT_PERCENT=$slowness >/dev/null &&
    limited cmake --build build -j "$jobs"
}
style() { scripts/check_style.sh; }
# Sources that compile together must compile alone too, with a developer's flags, and without what a precompiled header hides: one in
# sixteen of them, others in each commit.
alone() {
  local folder=build-alone one_in=16
  if [ "$ACCEL_TEST_LONG" = 1 ]; then one_in=1; fi
  cmake --preset dev -B $folder -DACCEL_PRECOMPILE=OFF >/dev/null || return 1
  limited scripts/compile_alone.py $folder --one-in $one_in --seed "$ACCEL_TEST_SEED" --jobs "$jobs" | tee $folder/alone.out
  local status=${PIPESTATUS[0]}
  remarks="; $(grep -m1 ' compiled alone' $folder/alone.out)"
  # The end of its output names the sources that failed; what the compiler said of each stands where a report is read.
  if [ "$status" -ne 0 ]; then grep -E ' (fatal )?error: ' $folder/alone.out | head -20 >>"$fallen"; fi
  return "$status"
}
# One more than cores: half of the time such tests wait, for leases or for processes.
unit() { run_ctest build $((jobs + 1)) -L '^(unit|integration|hostile)$'; }
peer() { run_ctest build "$jobs" -L '^peer$'; }
fault() { run_ctest build 1 -L '^fault$'; }

# ---- what takes turns ----

# take_turns FUNCTION PART...: calls FUNCTION with each part, beginning with another one in each commit, as long as the time of an
# ordinary run allows. A part is "MINUTES WORD...", and the report names the first word of those that had to be left out.
take_turns() {
  local run=$1 end left status=0 number part left_out=()
  shift
  left=$(time_left)
  end=$(($(seconds_here $ordinary_minutes) - SECONDS))
  if [ ${#only[@]} -gt 0 ] || [ "$ACCEL_TEST_LONG" = 1 ] || [ $end -gt "$left" ]; then end=$left; fi
  # Those that come after it have their turn too.
  end=$((SECONDS + end * turn_percent / 100))
  for ((number = 0; number < $#; ++number)); do
    part=${*:$(((number + ACCEL_TEST_SEED) % $# + 1)):1}
    # One is run on any machine where it has a chance.
    if [ $((SECONDS + $(seconds_here "${part%% *}"))) -gt $((number == 0 ? SECONDS + left : end)) ]; then
      left_out+=("$(cut -d' ' -f2 <<<"$part")")
      continue
    fi
    # shellcheck disable=SC2086  # a list of words
    "$run" ${part#* } || status=1
  done
  if [ ${#left_out[@]} -gt 0 ]; then remarks+="; left out: ${left_out[*]}"; fi
  return $status
}

# sanitized PRESET TARGETS... -- TEST...: builds the targets, and of the tests those that are programs; runs the tests.
sanitized() {
  local preset=$1 targets=() tests
  shift
  while [ "$1" != -- ]; do targets+=("$1"); shift; done
  shift
  for tests in "$@"; do [[ $tests != *_test ]] || targets+=("$tests"); done
  tests=$(IFS='|'; echo "$*")
  limited cmake --build "build-$preset" -j "$jobs" --target "${targets[@]}" && run_ctest "build-$preset" "$jobs" -R "^($tests)$"
}
asan_part() { local name=$1; shift; echo "--- asan: $name"; UBSAN_OPTIONS=print_stacktrace=1 sanitized asan "$@"; }
tsan_part() { local name=$1; shift; echo "--- tsan: $name"; TSAN_OPTIONS=halt_on_error=1 sanitized tsan "$@"; }
asan() {
  cmake --preset asan >/dev/null || return 1
  take_turns asan_part \
    '2 runtime -- runtime_test safetensors_test train_files_test' \
    '3 supervisor accel-shim -- supervisor_test observation_test' \
    '3 launcher accel-launch accel-shim -- launcher_test screens_test' \
    '3 coordinator -- coordinator_test' \
    '2 collectives -- collectives_test remote_shards_test' \
    '5 agents accel-launch accel-shim accel accel-agent accel_cluster fault_worker -- agent_test agent elastic'
}
tsan() {
  cmake --preset tsan >/dev/null || return 1
  take_turns tsan_part \
    '2 supervisor accel-shim -- runtime_test supervisor_test observation_test' \
    '3 collectives -- collectives_test remote_shards_test'
}
fuzz_part() {
  local targets=()
  local target; for target in "${@:2}"; do targets+=("fuzz_$target"); done
  limited cmake --build build-fuzz -j "$jobs" --target "${targets[@]}" && limited scripts/fuzz.sh build-fuzz "$fuzz_seconds" "${@:2}"
}
fuzz() {
  cmake --preset fuzz >/dev/null || return 1
  take_turns fuzz_part \
    '2 safetensors safetensors pickle' '2 exported exported' '2 store store frames' '2 config config hostlist' '4 proto proto shim'
}

stage setup 6 setup
if [ $failed -eq 0 ]; then
  measure_machine
  stage build 17 build
fi
if [ $failed -eq 0 ]; then
  stage style 1 style
  stage unit 19 unit
  stage peer 14 peer
  stage fault 6 fault
  stage alone 4 alone
  turn_percent=50 stage asan rest asan
  turn_percent=50 stage tsan rest tsan
  turn_percent=100 stage fuzz rest fuzz
fi

echo
cat "$fallen"
printf '%s\n' "${summary[@]}"
if [ $failed -gt 0 ]; then echo "failed: ${failures[*]}"; fi
echo "$passed passed, $failed failed, in $((SECONDS / 60)) min"
[ $failed -eq 0 ]
