"""How long accel takes to build, without a compiler cache, in units of one LibTorch: the processor time of <torch/torch.h> through the
compiler, taken on all cores at once as a build does. So figures of machines that differ by a factor of 2 can be compared.

    bench/run build             quickstart, whole product; one changed source; a user's program; the dearest headers
    bench/run build --check     the same, and fails when one has grown by more than 10 % over bench/build_baseline.json
    bench/run build --accept    writes that file
    bench/run build --tests     also the tests' build, and scripts/test.sh by stage in a clean clone (as long as that takes)
"""

import concurrent.futures
import glob
import itertools
import json
import os
import pathlib
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

from measure import SOURCE, emit

ROOT = pathlib.Path(SOURCE).resolve()
BASELINE = ROOT / "bench/build_baseline.json"
CORES = os.cpu_count()
ENVIRONMENT = dict(os.environ, CCACHE_DISABLE="1")
GROWTH = 1.10
GOALS = {"quickstart": 20, "whole product": 36, "one source of libaccel": 0.6, "the dearest source of libaccel": 0.6, "a user's program": 1.3}
# Of each part one source of the middle of its field, and the dearest of libaccel, in a developer's build.
CHANGED = {"one source of libaccel": "libaccel/engine/sharding/sharded_model.cc",
           "the dearest source of libaccel": "libaccel/engine/checkpoint/states/optimizer_state.cc",
           "one source of launcher": "launcher/plan/launch_plan.cc",
           "one source of agent": "agent/jobs/job_runner.cc"}
PROGRAMS = {"a user's program": "user_program.cc", "the same without accel": "torch_program.cc"}


def processor_seconds(command, cwd=ROOT):
    """Processor and wall seconds of a command and all that it starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, shell=True, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - began


def on_all_cores(commands):
    """Processor seconds of each command, while the other cores compile too."""
    def one(command):
        timing = subprocess.run(["bash", "-c", "TIMEFORMAT='%U %S'; time " + command], env=ENVIRONMENT, capture_output=True, text=True)
        if timing.returncode != 0:
            sys.exit(f"{command}\n{timing.stderr[-4000:]}")
        return sum(map(float, timing.stderr.split()[-2:]))
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        return list(pool.map(one, commands))


def compiler(include):
    torch = next(iter(glob.glob(f"{ROOT}/.deps/torch/lib/python3*/site-packages/torch/include")))
    return (f"g++ -std=c++20 -DUSE_DISTRIBUTED -DUSE_C10D_GLOO -isystem {torch} -isystem {torch}/torch/csrc/api/include "
            f"-I{ROOT} -I{ROOT}/libaccel/include -I{ROOT}/runtime/include -x c++ {include}")


def header(name):
    return compiler("-fsyntax-only -") + f" <<<'#include <{name}>'"


def measured():
    """Yields (case, units, wall seconds)."""
    unit = statistics.median(on_all_cores([header("torch/torch.h")] * (2 * CORES)))
    print(json.dumps({"bench": "build", "unit": round(unit, 2), "cores": CORES}), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        configure = f"cmake --preset release -B {scratch}/release"
        build = f"cmake --build {scratch}/release -j {CORES}"
        processor_seconds(f"{configure} -DACCEL_BUILD_TESTS=OFF -DACCEL_BUILD_BENCH=OFF")
        quickstart = processor_seconds(f"{build} --target accel-launch digits")
        yield "quickstart", quickstart[0] / unit, quickstart[1]
        rest = processor_seconds(build)
        yield "whole product", (quickstart[0] + rest[0]) / unit, quickstart[1] + rest[1]
        if "--tests" in sys.argv:
            processor_seconds(f"{configure} -DACCEL_BUILD_TESTS=ON -DACCEL_BUILD_BENCH=ON")
            tests = processor_seconds(build)
            yield "tests and benchmarks", tests[0] / unit, tests[1]

        processor_seconds(f"cmake --preset dev -B {scratch}/dev")
        commands = {entry["file"]: entry for entry in json.loads((pathlib.Path(scratch) / "dev/compile_commands.json").read_text())}
        for case, source in CHANGED.items():
            entry = commands[str(ROOT / source)]
            target = shlex.split(entry["command"])[-3]
            processor_seconds(f"ninja -C {scratch}/dev {target}")  # what is generated for it is there from now on
            seconds = on_all_cores([f"(cd {entry['directory']}; {entry['command']})"] * CORES)
            yield case, statistics.median(seconds) / unit, None
    for case, source in PROGRAMS.items():
        program = statistics.median(on_all_cores([compiler(f"-O2 -c -o /dev/null {ROOT}/bench/{source}")] * (2 * CORES)))
        yield case, program / unit, None
    names = sorted(f"accel/{path.name}" for path in (ROOT / "libaccel/include/accel").glob("*.h"))
    dearest = sorted(zip(on_all_cores([header(name) for name in names]), names), reverse=True)
    for seconds, name in dearest[:10]:
        yield f"<{name}>", seconds / unit, None


def stages():
    """Yields (stage, None, wall seconds) of scripts/test.sh in a clean clone."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["git", "clone", "-q", str(ROOT), scratch], check=True)
        done = subprocess.run(["scripts/test.sh"], cwd=scratch, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        for name, seconds in re.findall(r"^(\w+) +(\d+) s of +\d+ s ", done.stdout, re.M):
            yield f"scripts/test.sh: {name}", None, float(seconds)


def main():
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    units, grown = {}, []
    for case, value, wall in itertools.chain(measured(), stages() if "--tests" in sys.argv else []):
        goal = GOALS.get(case)
        if value is not None:
            units[case] = round(value, 3)
            emit("build", case, "processor time", "units of torch/torch.h", value, None, None,
                 goal=f"at most {goal}" if goal else "-", passed=value <= goal if goal else None)
            if case in baseline and value > baseline[case] * GROWTH:
                grown.append(f"{case}: {value:.2f} units, {baseline[case]:.2f} before")
        if wall is not None:
            emit("build", case, f"wall time on {CORES} cores", "s", wall, None, None, goal="-", passed=None)
    if "--accept" in sys.argv:
        BASELINE.write_text(json.dumps(dict(baseline, **units), indent=1) + "\n")
    if "--check" in sys.argv and not baseline:
        sys.exit(f"{BASELINE} is not there: nothing to compare with")
    if "--check" in sys.argv and grown:
        sys.exit("the build has grown by more than 10 %:\n" + "\n".join(grown))


if __name__ == "__main__":
    main()
