"""P-L1 and P-L3: starting workers that do nothing, and 64 at once, against torchrun; P-L1 for Python scripts too, also
against `accelerate launch`."""

import os
import subprocess
import sys
import tempfile
import time

from measure import (BUILD, PEER_BIN, PEER_PYTHON, PYTHON_ENVIRONMENT, PYTHON_WORKER, emit, in_turn, median, spread,
                     timed)

ROUNDS = 7
LAUNCH = os.path.join(BUILD, "bin/accel-launch")
TORCHRUN = os.path.join(PEER_BIN, "torchrun")

# A worker's parents up to the launcher: the shim and accel-launch, or torchrun alone.
MEMORY_OF_PARENTS = r"""
pid=$PPID; sum=0; levels=%d
while [ $levels -gt 0 ]; do
  sum=$((sum + $(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p' /proc/$pid/status)))
  pid=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$pid/status); levels=$((levels - 1))
done
[ "$RANK" = 0 ] && echo "memory $sum" > "$MEMORY_FILE"
exit 0
"""


def accel(n, *command):
    return [LAUNCH, "--num_processes", str(n), "--no_python", *command]


def torchrun(n, *command):
    return [TORCHRUN, "--nproc_per_node", str(n), "--master_port", "0", "--no-python", *command]


def python_accel(*words):
    return [LAUNCH, "--num_processes", "2", PYTHON_WORKER, *words]


def python_torchrun(*words):
    return [TORCHRUN, "--nproc_per_node", "2", "--master_port", "0", PYTHON_WORKER, *words]


# `accelerate launch` starts several processes without GPUs for FSDP; its line is the same for both but for the first words.
FSDP_LINE = ["--use_fsdp", "--fsdp_version", "2", "--num_processes", "2", "--main_process_port", "0", PYTHON_WORKER]


def fsdp_accel(*words):
    return [LAUNCH, *FSDP_LINE, *words]


def fsdp_accelerate(*words):
    return [os.path.join(PEER_BIN, "accelerate"), "launch", *FSDP_LINE, *words]


def seconds_of(command):
    def run():
        seconds, status, output = timed(command, env=PYTHON_ENVIRONMENT)
        if status != 0:
            sys.exit(f"launch_bench: {' '.join(command)} ended with {status}:\n{output}")
        return seconds
    return run


def ranks_that_ran(make):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(make(2, "sh", "-c", f"touch {folder}/$RANK-of-$WORLD_SIZE"), check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return sorted(os.listdir(folder))


def exit_status(make):
    return timed(make(2, "sh", "-c", "exit 5"), env=PYTHON_ENVIRONMENT)[1]


def memory_kb(make, levels):
    with tempfile.NamedTemporaryFile("r") as file:
        subprocess.run(make(2, "sh", "-c", MEMORY_OF_PARENTS % levels), check=True,
                       env=dict(PYTHON_ENVIRONMENT, MEMORY_FILE=file.name), stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        return int(file.read().split()[1])


def check_python_workers(*makes):
    for make in makes:
        with tempfile.TemporaryDirectory() as folder:
            _, status, output = timed(make("touch", folder), env=PYTHON_ENVIRONMENT)
            if status != 0 or sorted(os.listdir(folder)) != ["0-of-2", "1-of-2"]:
                sys.exit(f"launch_bench: {make.__name__} did not start both ranks:\n{output}")
        if timed(make("fail"), env=PYTHON_ENVIRONMENT)[1] == 0:
            sys.exit(f"launch_bench: a failing worker did not fail the job of {make.__name__}")


def python_memory_kb(make, levels):
    with tempfile.NamedTemporaryFile("r") as file:
        _, status, output = timed(make("memory", file.name, str(levels)), env=PYTHON_ENVIRONMENT)
        if status != 0:
            sys.exit(f"launch_bench: {make.__name__} ended with {status}:\n{output}")
        return int(file.read())


def interpreters_alone():
    """Seconds that two interpreters take for the script when nobody launches them: what is left for any launcher."""
    started = time.perf_counter()
    alone = [subprocess.Popen([PEER_PYTHON, "-u", PYTHON_WORKER, "nothing"]) for _ in range(2)]
    if any([process.wait() for process in alone]):
        sys.exit("launch_bench: Python alone failed")
    return time.perf_counter() - started


def python_workers():
    check_python_workers(python_accel, python_torchrun, fsdp_accel, fsdp_accelerate)
    limit = median([interpreters_alone() for _ in range(ROUNDS)]) * 1e3
    for name, case, ours_of, theirs_of in (
            ("torchrun", "2 x a Python script that does nothing", python_accel, python_torchrun),
            ("accelerate launch", "2 x the same script, --use_fsdp", fsdp_accel, fsdp_accelerate)):
        a, b = in_turn(seconds_of(ours_of("nothing")), seconds_of(theirs_of("nothing")), ROUNDS)
        ours, theirs = median(a) * 1e3, median(b) * 1e3
        emit("launch", case, "wall time of the launcher; limit: two interpreters alone", "ms", ours, theirs, name,
             limit=limit, goal="<= 25 ms and <= 1/60", passed=ours <= 25 and theirs / ours >= 60,
             spread=[value * 1e3 for value in spread(a)])
        a, b = in_turn(lambda: python_memory_kb(ours_of, 2), lambda: python_memory_kb(theirs_of, 1), 5)
        ours, theirs = median(a) / 1024, median(b) / 1024
        emit("launch", case, "peak memory of launcher and shim", "MB", ours, theirs, name,
             goal="<= 25 MB and <= 1/20", passed=ours <= 25 and theirs / ours >= 20,
             spread=[value / 1024 for value in spread(a)])


def main():
    # The same work first: both start both ranks, and both end with failure when a worker does.
    if ranks_that_ran(accel) != ranks_that_ran(torchrun) or ranks_that_ran(accel) != ["0-of-2", "1-of-2"]:
        sys.exit("launch_bench: the two launchers did not start the same ranks")
    if exit_status(accel) != 5 or exit_status(torchrun) == 0:
        sys.exit("launch_bench: a failing worker did not fail the job")

    a, b = in_turn(seconds_of(accel(2, "/bin/true")), seconds_of(torchrun(2, "/bin/true")), ROUNDS)
    ours, theirs = median(a) * 1e3, median(b) * 1e3
    emit("launch", "2 x /bin/true", "wall time of the launcher", "ms", ours, theirs, "torchrun",
         goal="<= 25 ms and <= 1/60", passed=ours <= 25 and theirs / ours >= 60,
         spread=[value * 1e3 for value in spread(a)])

    a, b = in_turn(lambda: memory_kb(accel, 2), lambda: memory_kb(torchrun, 1), 5)
    ours, theirs = median(a) / 1024, median(b) / 1024
    emit("launch", "2 workers", "peak memory of launcher and shim", "MB", ours, theirs, "torchrun",
         goal="<= 25 MB and <= 1/20", passed=ours <= 25 and theirs / ours >= 20,
         spread=[value / 1024 for value in spread(a)])

    run = seconds_of(accel(64, "/bin/true"))
    run()
    times = [run() * 1e3 for _ in range(ROUNDS)]
    peer = seconds_of(torchrun(64, "/bin/true"))() * 1e3
    emit("launch", "64 x /bin/true", "all started, reaped, no orphan", "ms", median(times), peer, "torchrun",
         goal="<= 150 ms", passed=median(times) <= 150, spread=spread(times))
    python_workers()


if __name__ == "__main__":
    main()
