"""One accel-agent in a folder of its own, and a test case that has one."""
import atexit
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

import raw_grpc
from programs import BUILD, SOURCE


def programs_for_everybody():
    """The folder with the programs; a copy of it when other users cannot reach the build below, say, /root."""
    folder = BUILD / "bin"
    if all(parent.stat().st_mode & 0o001 for parent in folder.resolve().parents):
        return folder
    copy = pathlib.Path(tempfile.mkdtemp(prefix="accel-programs-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    copy.chmod(0o755)
    for program in folder.iterdir():
        shutil.copy(program, copy)
    return copy


BIN = programs_for_everybody()
PATIENCE = 60
IS_ROOT = os.geteuid() == 0


UNIT_RIGHTS = re.search(r"^CapabilityBoundingSet=(.*)$", (SOURCE / "deploy/systemd/accel-agent.service").read_text(), re.MULTILINE)[1].split()
# Not all machines let a score be lowered.
CAN_BE_PROTECTED = subprocess.run(["choom", "-n", "-900", "--", "true"], capture_output=True).returncode == 0


def as_the_unit(rights=UNIT_RIGHTS):
    """What goes before the command of a program that is to have the rights and the OOM score of the shipped unit."""
    names = ",".join("+" + right.removeprefix("CAP_").lower() for right in rights)
    return [*(["choom", "-n", "-900", "--"] if CAN_BE_PROTECTED else []), "setpriv", "--inh-caps=-all", f"--bounding-set=-all,{names}", "--"]


class Agent:
    """An accel-agent with a state folder of its own; stopped with it."""

    def __init__(self, folder, *arguments, config="", user=None, env=None, program=BIN / "accel-agent", pass_fds=(), before=()):
        self.state = pathlib.Path(folder) / "state"
        config_file = pathlib.Path(folder) / "agent.yaml"
        config_file.write_text(("" if "socket_group" in config else 'socket_group: "*"\n') + config)
        config_file.chmod(0o644)
        self.log = open(pathlib.Path(folder) / "agent.log", "w+")
        identity = {} if user is None else {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}
        self.process = subprocess.Popen([*before, program, "--state-dir", self.state, "--config", config_file, *arguments],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})}, pass_fds=pass_fds, **identity)
        self.lines = []
        self.is_serving = threading.Event()
        self.reader = threading.Thread(target=self.read_lines)
        self.reader.start()
        self.is_serving.wait(PATIENCE)

    def read_lines(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if " serves at " in line:
                self.is_serving.set()
        self.is_serving.set()

    def text(self):
        return "".join(self.lines)

    def wait_for_text(self, part):
        """What it said before it answered may still be on its way through the pipe."""
        for _ in range(PATIENCE * 20):
            if part in self.text():
                return
            threading.Event().wait(0.05)
        raise AssertionError(f"the agent never said {part!r}:\n{self.text()}")

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.reader.join()
            self.process.stderr.close()
            self.log.close()
        return self.process.returncode


class AgentTest(unittest.TestCase):
    CONFIG = "allow_root: true\n"

    def setUp(self):
        # Other users must reach the sockets below it.
        self.folder = tempfile.mkdtemp(prefix="accel-agent-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.agent = self.start_agent()
        self.addCleanup(self.agent.end)

    def start_agent(self):
        return Agent(self.folder, config=self.CONFIG)

    def accel(self, *arguments, user=None, env=None, input=None):
        identity = {} if user is None else {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}
        command, *rest = map(str, arguments)
        return subprocess.run([BIN / "accel", command, "--agent", self.agent.state / "run", *rest], capture_output=True, text=True,
                              timeout=PATIENCE, cwd="/", env={**os.environ, **(env or {})}, input=input, **identity)

    def job(self, name, **more):
        done = self.accel("status", name, "--json", **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def wait_for_line(self, follower, start):
        for line in follower.stdout:
            if line.startswith(start):
                return line.strip()
        self.fail(f"no line that begins with {start}")

    def wait_for_text(self, part):
        self.agent.wait_for_text(part)

    def call(self, method, ticket, count=1, message=b""):
        return raw_grpc.call(self.agent.state / "run", method, ticket, count, message)

    def follow(self, name, user=None):
        identity = {} if user is None else {"user": user, "group": pwd.getpwuid(user).pw_gid, "extra_groups": []}
        follower = subprocess.Popen([BIN / "accel", "logs", "-f", name, "--agent", self.agent.state / "run"], stdout=subprocess.PIPE,
                                    text=True, **identity)
        self.addCleanup(follower.stdout.close)
        self.addCleanup(follower.wait, PATIENCE)
        return follower
