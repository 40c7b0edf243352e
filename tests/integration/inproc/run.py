#!/usr/bin/env python3
"""Launches from inside a running program (docs/guides/launchers.md): every way to workers, and every way they can end.

Run by ctest. Exits with 1 and names what differs.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
PROGRAM = BUILD / "tests/launching_program"
WAYS = ("early", "registered", "now", "captures")
TAG = "ACCEL_INPROC_TEST"
SCRATCH = tempfile.TemporaryDirectory()  # programs that are killed leave their files there
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
ENVIRONMENT["TMPDIR"] = SCRATCH.name
faults = []


def expect(condition, what):
    if not condition:
        faults.append(what)


def run(*arguments, **environment):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env=dict(ENVIRONMENT, **environment))
    return done.returncode, done.stdout, done.stderr


def reported(text):
    """rank -> its variables, of the lines of `report`."""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("rank RANK=")]
    found = [dict(word.split("=", 1) for word in line) for line in lines]
    return {int(variables["RANK"]): variables for variables in found}


def every_way_runs_every_rank():
    for way, ranks in zip(WAYS, (4, 2, 1, 2)):
        code, out, err = run(way, "report", ranks)
        seen = reported(out)
        who = f"{way} with {ranks} ranks"
        expect(code == 0 and "done" in out, f"{who}: {code} {out} {err}")
        expect(sorted(seen) == list(range(ranks)), f"{who}: ranks {sorted(seen)}")
        expect(out.count("main runs once") == 1, f"{who}: main() ran in a worker, or its buffer was copied: {out}")
        expect("subreaper 0 children 0" in out, f"{who}: the program became a parent: {out}")
        for rank, variables in seen.items():
            wanted = {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "FORK_LAUNCHED": "1",
                      "ACCELERATE_USE_CPU": "yes", "ACCELERATE_MIXED_PRECISION": "no", "GLOO_SOCKET_IFNAME": "lo",
                      "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True", "object": "constructed"}
            differing = {name: variables[name] for name, value in wanted.items() if variables[name] != value}
            expect(not differing, f"{who}: rank {rank} has {differing}")


def a_notebook_has_its_options():
    code, out, err = run("early", "report", 2, "--notebook", "--prefix", "<${role_name} ${local_rank}/${rank}> ")
    for rank in (0, 1):
        expect(f"<default {rank}/{rank}> rank RANK={rank} " in out, f"the prefix of rank {rank}: {out}")
    expect(out.count("Launching training on 2 CPUs.\n") == 1, f"what begins is said once: {out}")
    code, got, err = run("captures", "report", 2, "--notebook")
    expect(code == 0 and sorted(reported(got)) == [0, 1], f"a function with arguments: {code} {got} {err}")
    expect("NPROC=2 NODE_RANK=0" in out and "ACCELERATE_USE_CPU=-" in out, f"variables of a notebook: {out}")
    code, out, err = run("registered", "report", 1, "--notebook")
    expect("Launching training on CPU.\n" in out, f"one process is said too: {out}")
    expect(code == 0 and "RANK=-" in out and "FORK_LAUNCHED=-" in out, f"one process is called in place: {out}")
    for way, ranks in (("registered", 1), ("early", 1), ("early", 2)):
        code, out, err = run(way, "report", ranks, "--notebook", "--precision", "bf16", "--env", "launch_note=lower")
        wanted = "ACCELERATE_MIXED_PRECISION=bf16" in out and "launch_note=lower" in out
        expect(code == 0 and wanted, f"{way}, {ranks} ranks: its precision and variables: {out} {err}")
        expect("precision afterwards -" in out, f"{way}, {ranks} ranks: the variables stayed: {out}")


def nodes_of_c10d_are_one_job():
    ranks = {}
    for node in (0, 1):
        code, out, err = run("early", "report", 2, "--notebook", "--nodes", 2, node, "--meet", "c10d", "127.0.0.1:29400")
        expect(code == 0, f"node {node} of c10d: {code} {out} {err}")
        ranks.update(reported(out))
    expect(sorted(ranks) == [0, 1, 2, 3], f"ranks of two nodes: {sorted(ranks)}")
    for rank, variables in ranks.items():
        wanted = {"WORLD_SIZE": "4", "NODE_RANK": str(rank // 2), "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "False"}
        differing = {name: variables[name] for name, value in wanted.items() if variables[name] != value}
        expect(not differing, f"rank {rank} of two nodes has {differing}")
    code, out, err = run("early", "report", 2, "--notebook", "--nodes", 2, 0, "--meet", "c10d", "192.0.2.1:29400")
    expect(code == 4 and "refused [argument.invalid] node_rank is 0, but 192.0.2.1" in out, f"node 0 elsewhere: {code} {out} {err}")


def a_failing_rank_becomes_an_exception():
    for way in WAYS:
        code, out, err = run(way, "fail_to_throw", 2)
        wanted = "caught worker.failed 1 1 0: rank 1 of 2 failed: std::runtime_error: boom"
        expect(code == 3 and wanted in out, f"{way}, an exception: {code} {out} {err}")
        expect("rank 1 ended with an exception: std::runtime_error: boom" in err, f"{way}, its words: {err}")
        code, out, err = run(way, "end_thread", 2)
        wanted = "caught worker.failed 1 1 0: rank 1 of 2 failed: its thread was ended by pthread_exit()"
        expect(code == 3 and wanted in out, f"{way}, an end of the thread: {code} {out} {err}")
    code, out, _ = run("early", "throw_text", 2)
    expect("rank 1 of 2 failed: std::string: no data" in out, f"a thrown text: {out}")
    for way in ("early", "registered", "now"):
        code, out, _ = run(way, "segfault", 2)
        wanted = "caught worker.signaled 1 0 11: rank 1 of 2 was ended by SIGSEGV (Segmentation fault)"
        expect(code == 3 and wanted in out, f"{way}, a signal: {code} {out}")
    code, out, _ = run("early", "exit_seven", 2)
    expect("caught worker.failed 1 7 0: rank 1 of 2 ended with exit code 7" in out, f"an exit code: {out}")


def an_exit_of_a_rank_runs_nothing_of_the_program():
    for way in WAYS:
        code, out, err = run(way, "exit_nine", 2)
        wanted = "caught worker.failed 1 9 0: rank 1 of 2 ended with exit code 9" in out
        expect(code == 3 and wanted and "rank 1 leaves" in out, f"{way}, exit(): {code} {out} {err}")
        told = [out.count(word) for word in ("atexit", "destroyed")]
        expect(told == [1, 1], f"{way}, exit(): handlers and destructors ran {told} times: {out}")


def ranks_begin_where_the_program_is():
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            code, out, err = run(way, "tell_place", 2, "--folder", folder)
            expect(out.count(f"in {os.path.realpath(folder)} with 027") == 2, f"{way}, folder and umask: {code} {out} {err}")


def restarts_are_counted():
    for way in ("early", "registered", "now"):
        code, out, err = run(way, "fail_once", 2, "--notebook", "--restarts", 1)
        expect(code == 0 and "rank 0 went on" in out and "rank 1 went on" in out, f"{way}, a restart: {code} {out} {err}")
        expect("restart 1" in err, f"{way}, the word on a restart: {err}")
    code, out, _ = run("early", "fail_to_throw", 2, "--notebook", "--restarts", 2)
    expect(code == 3 and "boom" in out, f"restarts that do not help: {code} {out}")


def threads_are_counted():
    for way in ("early", "registered"):
        code, out, _ = run(way, "report", 2, "--threads", 3)
        expect(code == 0 and sorted(reported(out)) == [0, 1], f"{way} with threads: {code} {out}")
    code, out, _ = run("now", "report", 2, "--threads", 3)
    expect(code == 4 and "4 threads" in out and "accel::init_launcher(argc, argv)" in out, f"now, threads: {out}")
    code, out, _ = run("captures", "report", 2, "--threads", 1)
    expect(code == 4 and "2 threads" in out, f"captures, threads: {out}")


def a_library_between_is_copied_or_refused():
    """The program is linked to a library that is linked to libaccel: executed again, it would run main() (main_hook.cc)."""
    def run_distant(threads, **environment):
        return subprocess.run([BUILD / "tests/distant_program", threads], capture_output=True, text=True, timeout=60,
                              env=dict(ENVIRONMENT, **environment))
    done = run_distant("0")
    trained = sorted(line for line in done.stdout.splitlines() if line.startswith("trained"))
    expect(done.returncode == 0 and trained == ["trained 0", "trained 1"], f"a library between: {done}")
    expect(done.stdout.count("main runs") == 1, f"a library between: main() ran in a worker: {done}")
    done = run_distant("1")
    wanted = "brought by another library" in done.stdout and "because it has 2 threads" in done.stdout
    expect(done.returncode == 4 and wanted and "trained" not in done.stdout, f"a library between, a thread: {done}")
    done = run_distant("0", ACCEL_LAUNCH_FUNCTION="train")
    expect(done.returncode == 1 and "init_launcher" in done.stderr, f"a worker that runs main(): {done}")


def misuse_is_refused():
    code, out, _ = run("early", "launch_again", 2)
    expect(code == 3 and "debug_launcher was called in a worker (rank " in out, f"nested: {out}")
    code, out, _ = run("registered", "nothing", 2)
    expect(code == 4 and "ACCEL_LAUNCH_FUNCTION(nothing)" in out and "exit_seven" in out, f"an unknown name: {out}")
    code, out, _ = run("early", "report", 0)
    expect(code == 4 and "num_processes is 0" in out, f"no processes: {out}")
    code, out, _ = run("early", "report", 2, ACCEL_SHIM="/nowhere/accel-shim")
    expect(code == 4 and "/nowhere/accel-shim" in out, f"no shim: {out}")
    code, out, _ = run("early", "report", 2, LOCAL_RANK="0")
    expect(code == 4 and "called in a worker" in out, f"in a worker of another launcher: {out}")
    deep = SCRATCH.name  # usable; a file in it has too long a name
    while len(deep) < 4085:
        deep += "/" + "d" * min(250, 4085 - len(deep) - 1)
    os.makedirs(deep)
    code, out, _ = run("early", "report", 2, TMPDIR=deep)
    expect(code == 4 and "accel-debug-" in out and "TMPDIR" in out, f"no temporary file: {out}")


def standard_streams_may_be_closed():
    for way in ("early", "registered", "now"):
        for closed in ((0, 1, 2), (1, 2), (0,)):
            done = subprocess.run([PROGRAM, way, "look_at_streams", "2"], timeout=60, env=ENVIRONMENT, stdout=subprocess.DEVNULL,
                                  preexec_fn=lambda numbers=closed: [os.close(number) for number in numbers])
            expect(done.returncode == 0, f"{way} without the streams {closed}: {done.returncode}")


def processes_of(tag):
    """Of this test: the environment of a forked process is that of its program."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if f"{TAG}={tag}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until_gone(tag):
    for _ in range(1000):
        left = processes_of(tag)
        if not left:
            return []
        time.sleep(0.01)
    return left


def start_waiting(way, tag, *options, what="leave_children"):
    """The program with two ranks that wait; with "leave_children" each has a child in a session of its own."""
    process = subprocess.Popen([PROGRAM, way, what, "2", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=dict(ENVIRONMENT, **{TAG: tag}))
    ranks = []
    while len(ranks) < 2:
        line = process.stdout.readline()
        if not line:
            break
        if line.startswith("waiting"):
            ranks.append(int(line.split()[1]))
    return process, ranks


def send(number, *pids):
    """In this order. What the first ones end may be gone, with the signal that it got from them."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def nothing_remains():
    for way in ("early", "registered", "now"):
        for victim in ("program", "shim"):
            tag = f"{way}-{victim}-{os.getpid()}"
            process, ranks = start_waiting(way, tag)
            expect(len(ranks) == 2, f"{tag}: the ranks did not start")
            if len(ranks) == 2:
                os.kill(process.pid if victim == "program" else parent_of(ranks[0]), signal.SIGKILL)
            process.stdout.read()
            code = process.wait(timeout=30)
            expect(code == (-9 if victim == "program" else 4), f"{tag}: the program ended with {code}")
            # What is found by nothing but its parents stays when program and shim are strangers (docs/guides/launchers.md).
            left = wait_until_gone(tag)
            expect(not left, f"{tag}: {left} remain")
            for pid in left:
                os.kill(pid, signal.SIGKILL)


def a_signal_ends_workers_and_program():
    for way, number in (("early", signal.SIGINT), ("early", signal.SIGTERM), ("registered", signal.SIGTERM),
                        ("now", signal.SIGTERM), ("now", signal.SIGHUP)):
        tag = f"{way}-{number}-{os.getpid()}"
        process, _ = start_waiting(way, tag, "--notebook", "--grace", "100")
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        expect(process.returncode == -number, f"{tag}: the program ended with {process.returncode}: {err}")
        expect(not wait_until_gone(tag), f"{tag}: processes remain")


def a_handler_may_stop_the_workers():
    for way in ("early", "registered"):
        tag = f"stop-{way}-{os.getpid()}"
        process, _ = start_waiting(way, tag, "--notebook", "--handle", "stop", what="save_at_sigterm")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        expect(err.count("handled") == 1, f"{tag}: the program's handler ran {err.count('handled')} times: {err}")
        expect("rank 0 saved" in out and "rank 1 saved" in out, f"{tag}: the ranks had no time: {out} {err}")
        expect(process.returncode == 3 and "caught " in out, f"{tag}: {process.returncode} {out} {err}")
        expect(not wait_until_gone(tag), f"{tag}: processes remain")


def a_signal_to_every_process_leaves_those_between_alone():
    """What scancel and systemd do: the ranks save and fail, are started again, and the program launches once more."""
    for way in ("early", "registered", "now"):
        for number in (signal.SIGTERM, signal.SIGHUP) if way == "early" else (signal.SIGTERM,):
            tag = f"every-{way}-{number}-{os.getpid()}"
            options = ("--notebook", "--restarts", "1", "--handle", "note", "--again")
            process, ranks = start_waiting(way, tag, *options, what="save_at_sigterm")
            between = [pid for pid in processes_of(tag) if pid not in (process.pid, *ranks)]
            wanted = 1 if way == "registered" else 3  # accel-shim; accel-forker, the fork server
            expect(len(between) == wanted, f"{tag}: {len(between)} processes between program and ranks")
            send(number, *between)
            send(signal.SIGTERM, process.pid, *ranks)
            out, err = process.communicate(timeout=30)
            expect(err.count("handled") == 1, f"{tag}: the program's handler ran {err.count('handled')} times: {err}")
            for rank in (0, 1):
                words = (f"rank {rank} saved" in out, f"rank {rank} went on" in out)
                expect(all(words), f"{tag}: rank {rank} saved, went on: {words}: {out} {err}")
            expect(sorted(reported(out)) == [0, 1], f"{tag}: the launch after it: {out} {err}")
            expect(process.returncode == 0 and "done" in out, f"{tag}: {process.returncode} {out} {err}")


def ranks_meet_through_an_accelerator():
    trainer = BUILD / "tests/launching_trainer"
    for way in ("early", "registered") if trainer.exists() else ():
        done = subprocess.run([trainer, way], capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
        words = [f"sum {ranks * (ranks + 1) // 2} of {ranks} on" for ranks in (2, 3)]
        expect(done.returncode == 0 and all(word in done.stdout for word in words) and "done" in done.stdout,
               f"training, {way}: {done.returncode} {done.stdout} {done.stderr}")


def main():
    for check in (every_way_runs_every_rank, a_notebook_has_its_options, nodes_of_c10d_are_one_job,
                  a_failing_rank_becomes_an_exception,
                  an_exit_of_a_rank_runs_nothing_of_the_program, ranks_begin_where_the_program_is, restarts_are_counted, threads_are_counted, a_library_between_is_copied_or_refused, misuse_is_refused,
                  standard_streams_may_be_closed,
                  nothing_remains, a_signal_ends_workers_and_program, a_handler_may_stop_the_workers,
                  a_signal_to_every_process_leaves_those_between_alone, ranks_meet_through_an_accelerator):
        start = time.monotonic()
        check()
        print(f"inproc: {check.__name__}: {time.monotonic() - start:.2f} s")
    for fault in faults:
        print("inproc:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
