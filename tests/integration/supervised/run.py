#!/usr/bin/env python3
"""What a worker with libaccel tells the launcher: its uncaught error and checkpoints in the report, its stacks on Ctrl-\\."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import free_port  # noqa: E402

BUILD = os.environ["ACCEL_BUILD_DIR"]
LAUNCH = [f"{BUILD}/bin/accel-launch", "--cpu", "--num_processes", "2", "--stop_grace", "5"]
WORKER = f"{BUILD}/tests/supervised_worker"


def uncaught_error_is_in_the_report():
    done = subprocess.run([*LAUNCH, WORKER, "throw"], capture_output=True, text=True, timeout=60)
    text = done.stdout + done.stderr
    assert done.returncode == 128 + signal.SIGABRT, (done.returncode, text)
    report = text[text.rindex("error ["):]
    assert "rank 1" in report and "SIGABRT" in report, text
    assert "a batch of 7 cannot be split over 2 ranks" in report, text


def every_thread_writes_its_stack():
    job = subprocess.Popen([*LAUNCH, WORKER, "sleep"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in job.stdout:
        lines.append(line)
        if sum(text.startswith("ready") for text in lines) == 2:
            job.send_signal(signal.SIGQUIT)
            break
    for line in job.stdout:
        lines.append(line)
        if sum("__libc_start" in text for text in lines) >= 2:
            break
    job.send_signal(signal.SIGTERM)
    lines += job.communicate(timeout=60)[0].splitlines(True)
    text = "".join(lines)
    assert text.count("stack of thread supervised_work") >= 2, text
    assert job.returncode == 128 + signal.SIGTERM, (job.returncode, text)


def newest_checkpoint_is_in_the_report():
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*LAUNCH, WORKER, "save", folder], capture_output=True, text=True, timeout=60)
        text = done.stdout + done.stderr
        assert done.returncode == 3, (done.returncode, text)
        tokens = re.findall(r"^token (\S+)/0/(\d)$", done.stdout, re.MULTILINE)
        assert [number for _, number in tokens] == ["1", "2"], text
        assert re.search(rf"checkpoint +{folder}/checkpoints/checkpoint_1 \(step 2\)", done.stderr), text


def a_hang_names_the_rank_that_called_something_else():
    done = subprocess.run([*LAUNCH, "--hang_timeout", "2", WORKER, "part", "other"], capture_output=True, text=True, timeout=60)
    text = done.stdout + done.stderr
    assert done.returncode == 124, (done.returncode, text)
    assert re.search(r"rank 1 differs from the others at collective call (\d+): all_reduce max 2 Long \(gather\) in place of "
                     r"barrier \(wait_for_everyone\) of rank 0", text[text.rindex("error ["):]), text


def the_report_tells_where_the_time_of_steps_went():
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*LAUNCH, WORKER, "save", folder], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "ACCEL_STEP_TIMES": "1"})
    for rank in range(2):
        found = re.search(rf"^accel-launch: rank {rank}: 1 steps of [\d.]+ ms: compute ([\d.]+) %, exposed communication ([\d.]+) %, "
                          r"input ([\d.]+) %, I/O ([\d.]+) %, wait ([\d.]+) %$", done.stderr, re.MULTILINE)
        assert found, done.stderr
        shares = [float(share) for share in found.groups()]
        assert abs(sum(shares) - 100) < 0.5, shares  # each is rounded to 0.1
        assert shares[3] > 0, shares  # the first save lies between the two backwards


def memory_lines(text):
    return [line.split()[1:] for line in text.splitlines() if line.startswith("memory ")]


def ranks_share_the_supervisors_memory_and_get_new_memory_after_a_restart():
    done = subprocess.run([*LAUNCH, "--max_restarts", "1", WORKER, "memory"], capture_output=True, text=True, timeout=60)
    text = done.stdout + done.stderr
    assert done.returncode == 0, (done.returncode, text)
    pieces = memory_lines(done.stdout)
    assert len(pieces) == 4 and {tuple(piece[2:4]) for piece in pieces} == {("shm", "/memfd:accel-shared")}, text
    inodes = {generation: {piece[4] for piece in pieces if piece[1] == generation} for generation in "01"}
    assert len(inodes["0"]) == len(inodes["1"]) == 1 and inodes["0"] != inodes["1"], text
    lost = re.search(r"^lost wait_for_everyone failed on rank 0 of 2: rank 1 \(process \d+\) has died", done.stdout, re.M)
    # The supervisor may have ended rank 0 first.
    assert lost or "lost" not in done.stdout, text


def ranks_without_a_supervisor_share_rank_zeros_memory():
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
           "TORCHELASTIC_RESTART_COUNT": "1"}
    ranks = [subprocess.Popen([WORKER, "memory"], env={**os.environ, **job, "RANK": rank, "LOCAL_RANK": rank},
                              stdout=subprocess.PIPE, text=True) for rank in "01"]
    text = "".join(rank.communicate(timeout=60)[0] for rank in ranks)
    pieces = memory_lines(text)
    assert [rank.returncode for rank in ranks] == [0, 0], text
    assert len(pieces) == 2 and {piece[3] for piece in pieces} == {"/memfd:accel-collectives"}, text
    assert len({piece[4] for piece in pieces}) == 1, text


def a_worker_without_supervisor_tells_nobody():
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen([WORKER, "save", folder], stdout=subprocess.PIPE, text=True)
        lines = [next(job.stdout) for _ in range(3)]
        job.kill()
        job.communicate()
        assert lines == ["ready 0\n", "token none\n", "token none\n"], lines


def main():
    newest_checkpoint_is_in_the_report()
    a_worker_without_supervisor_tells_nobody()
    ranks_share_the_supervisors_memory_and_get_new_memory_after_a_restart()
    ranks_without_a_supervisor_share_rank_zeros_memory()
    uncaught_error_is_in_the_report()
    every_thread_writes_its_stack()
    a_hang_names_the_rank_that_called_something_else()
    the_report_tells_where_the_time_of_steps_went()


if __name__ == "__main__":
    sys.exit(main())
