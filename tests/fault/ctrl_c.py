#!/usr/bin/env python3
"""Presses Ctrl-C at a random moment of a launch on a terminal, whose worker fails and is restarted meanwhile.

    ctrl_c.py [--seed N] [--runs N]

Whatever the moment, between two generations too, the launcher ends by the Ctrl-C, not by a grace of an hour, and no
process of the job is left.
"""
import argparse
import os
import pty
import random
import select
import signal
import sys
import tempfile
import time
import uuid

SOURCE = os.environ.get("ACCEL_SOURCE_DIR", os.getcwd())
BUILD = os.environ.get("ACCEL_BUILD_DIR", os.path.join(SOURCE, "build"))
LAUNCH = os.path.join(BUILD, "bin/accel-launch")
PATIENCE = 60  # seconds
# Fails once: the first restart has no delay.
WORKER = 'if [ -e "$0" ]; then echo second one; exec sleep 3600; else : > "$0"; exit 1; fi'
CTRL_C = b"\x03"


class Failure(Exception):
    pass


def processes_with(mark):
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if mark.encode() in file.read():
                    with open(f"/proc/{entry}/stat") as stat:
                        if stat.read().rsplit(")", 1)[1].split()[0] != "Z":
                            found.append(int(entry))
        except OSError:
            continue
    return found


class Launch:
    """accel-launch as the leader of a session with a terminal, in whose foreground group it is."""

    def __init__(self):
        self.mark = f"ACCEL_TEST_MARK={uuid.uuid4().hex}"
        self.output = b""
        name, _, value = self.mark.partition("=")
        self.folder = tempfile.TemporaryDirectory(prefix="accel-ctrl-c-")
        arguments = [LAUNCH, "--num_processes", "1", "--max_restarts", "2", "--stop_grace", "3600",
                     "--no_python", "/bin/sh", "-c", WORKER, self.folder.name + "/failed"]
        environment = {**os.environ, name: value}
        executed, to_execute = os.pipe()  # closed by exec: from then on a Ctrl-C is the launcher's
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execve(LAUNCH, arguments, environment)
        os.close(to_execute)
        os.read(executed, 1)
        os.close(executed)
        self.began = time.monotonic()

    def read_until(self, is_enough, deadline):
        """Whether it was. The end of the output ends it too."""
        while not is_enough():
            wait = deadline - time.monotonic()
            if wait <= 0:
                return False
            if not select.select([self.terminal], [], [], wait)[0]:
                continue
            try:
                got = os.read(self.terminal, 65536)
            except OSError:  # EIO: nobody has the terminal any more
                got = b""
            if not got:
                return is_enough()
            self.output += got
        return True

    def end(self):
        """Its exit code, or 128 + signal."""
        deadline = time.monotonic() + PATIENCE
        self.read_until(lambda: False, deadline)
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            time.sleep(0.005)
        raise Failure(f"did not end within {PATIENCE} s of Ctrl-C:\n{self.output.decode()}")

    def kill(self):
        for pid in processes_with(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os.close(self.terminal)
        self.folder.cleanup()


def run_once(moment):
    """Ctrl-C `moment` seconds after the start, or once the second generation runs. Gives how long that took."""
    launch = Launch()
    try:
        deadline = time.monotonic() + (PATIENCE if moment is None else moment)
        launch.read_until(lambda: b"second one" in launch.output, deadline)
        took = time.monotonic() - launch.began
        os.write(launch.terminal, CTRL_C)
        status = launch.end()
        if status != 128 + signal.SIGINT:
            raise Failure(f"ended with {status}, expected {128 + signal.SIGINT}:\n{launch.output.decode()}")
        left = processes_with(launch.mark)
        if left:
            raise Failure(f"left processes {left}:\n{launch.output.decode()}")
        return took
    finally:
        launch.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--runs", type=int, default=12)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    print(f"seed {options.seed}")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    whole = run_once(None)
    for number in range(options.runs):
        moment = moments.uniform(0, whole)
        try:
            run_once(moment)
        except Failure as failure:
            sys.exit(f"run {number}, Ctrl-C after {moment * 1000:.1f} of {whole * 1000:.1f} ms: {failure}")
    print(f"{options.runs} runs of {whole * 1000:.0f} ms")


if __name__ == "__main__":
    main()
