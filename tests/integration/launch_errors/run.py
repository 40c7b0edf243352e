#!/usr/bin/env python3
"""What a user sees and what a script gets (the exit status) when a launch goes wrong, with the real programs."""
import json
import os
import pathlib
import pty
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import cannot_mount  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
LAUNCHER = BUILD / "bin/accel-launch"
HOSTILE = SOURCE / "tests/hostile/configs"


class LaunchErrors(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def launch(self, *arguments):
        environment = os.environ | {"HF_HOME": str(self.folder)}
        return subprocess.run([LAUNCHER, *map(str, arguments)], env=environment, cwd=self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60)

    def assert_refused(self, status, parts, *arguments):
        done = self.launch(*arguments)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertTrue(done.stderr.startswith("accel-launch: error ["), done.stderr)
        self.assertIn("\n  try       ", done.stderr)
        self.assertIn("\n  more      docs/reference/errors.md#", done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)

    def program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    @unittest.skipIf(cannot_mount(), cannot_mount())
    def test_a_container_without_sys_starts_workers_and_writes_nothing_of_its_own(self):
        done = subprocess.run(["unshare", "--mount", "/bin/sh", "-c", 'mount -t tmpfs none /sys && exec "$@"', "sh", LAUNCHER, "--cpu",
                               "--num_processes", "2", "--enable_cpu_affinity", "--no_python", "/bin/echo", "here"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "here\nhere\n", ""))

    def test_command_lines(self):
        (self.folder / "data.bin").write_bytes(b"\x7fELF")
        self.program("train", "#!/bin/sh\n")
        cases = [
            (127, ["there is no trian, did you mean train?"], ["trian"]),
            (126, ["data.bin has no permission to be executed", "chmod +x"], ["data.bin"]),
            (2, ["unknown flag --num_process, did you mean --num_processes?"], ["--num_process", "2", "train"]),
            (2, ["--num_processes is '0'"], ["--num_processes", "0", "train"]),
            (2, ["at most 1024 workers"], ["--num_processes", "10000", "train"]),
            (2, ["no script or program is given"], ["--cpu"]),
            (2, ["--tpu_cluster needs the name of the pod"], ["--tpu", "--tpu_cluster", "train"]),
            (2, ["--fsdp_offload_params is 'maybe', expected true or false"],
             ["--use_fsdp", "--fsdp_offload_params", "maybe", "train"]),
            (2, ["unknown keys (['another_invalid_key', 'invalid_key'])"],
             ["--config_file", HOSTILE / "unknown_keys.yaml", "train"]),
            (2, [":3: the line is indented with a tab"], ["--config_file", HOSTILE / "indented_with_tab.yaml", "train"]),
            (2, ["No such file or directory"], ["--config_file", "none.yaml", "train"]),
        ]
        for status, parts, arguments in cases:
            with self.subTest(arguments=arguments):
                self.assert_refused(status, parts, *arguments)

    def test_a_ctrl_c_ends_the_loop_of_the_shell_too(self):
        self.program("sleeper", "#!/bin/sh\necho start $1 of $RANK\n[ $1 = 2 ] || exec sleep 60\n")
        loop = f"for i in 1 2; do '{LAUNCHER}' --cpu --num_processes 2 ./sleeper $i; done; echo status $?"
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-c", loop])
        shown = b""
        has_ended = False
        while not has_ended:
            self.assertTrue(select.select([terminal], [], [], 60)[0], shown)
            try:
                piece = os.read(terminal, 4096)
            except OSError:  # the other end is closed
                piece = b""
            has_ended = not piece
            before, shown = shown, shown + piece
            if shown.count(b"start 1 of") == 2 and before.count(b"start 1 of") < 2:
                os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
        self.assertNotIn(b"start 2", shown)
        self.assertEqual(os.waitstatus_to_exitcode(status), -signal.SIGINT, shown)

    def test_the_error_file_of_who_started_the_launcher_is_written(self):
        says = self.program("says", '#!/bin/sh\n[ $RANK = 1 ] || exec sleep 60\n'
                            'echo \'{"message": {"message": "ValueError: no"}}\' > "$TORCHELASTIC_ERROR_FILE"\nexit 3\n')
        for name, script, words in (("said", says, "ValueError: no"), ("silent", self.program("silent", "#!/bin/sh\nexit 3\n"),
                                                                      "ended with exit code 3")):
            with self.subTest(name), unittest.mock.patch.dict(os.environ, TORCHELASTIC_ERROR_FILE=str(self.folder / f"{name}.json")):
                done = self.launch("--cpu", "--num_processes", "2", script)
                self.assertEqual(done.returncode, 3, done.stderr)
                error = json.loads((self.folder / f"{name}.json").read_text())["message"]
                self.assertIn(words, error["message"])
                self.assertEqual(error["errorCode"], 3)

    def launch_with_file_limit(self, limit, *arguments):
        take_limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return subprocess.run([LAUNCHER, *map(str, arguments)], env=os.environ | {"HF_HOME": str(self.folder)},
                              cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                              preexec_fn=take_limit)

    def test_words_that_a_limit_on_files_does_not_let_pass_are_cut(self):
        script = self.program("talk", "#!/bin/sh\nyes line | head -c 100000 >&2\necho the last words >&2\nexit 3\n")
        done = self.launch_with_file_limit(64 * 1024, "--cpu", "--num_processes", "2", "--redirects", "3", "--log_dir",
                                           "logs", script)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("ended with exit code 3", done.stderr)
        self.assertIn("the last words", done.stderr)
        self.assertIn("is told in part only", done.stderr)

    def test_a_worker_gets_the_signal_of_a_limit_on_files(self):
        script = self.program("write", "#!/bin/sh\nhead -c 100000 /dev/zero > big\necho status=$?\n")
        done = self.launch_with_file_limit(64 * 1024, "--cpu", script)
        self.assertEqual(done.stdout, f"status={128 + signal.SIGXFSZ}\n", done.stderr)

    def test_a_limit_on_files_that_a_job_does_not_fit_into_is_named(self):
        done = self.launch_with_file_limit(512, "--cpu", "--no_python", "true")
        self.assertEqual(done.returncode, 71, done.stderr)
        self.assertIn("cannot hand the job over: File too large", done.stderr)
        self.assertIn("ulimit -f", done.stderr)

    def test_the_port_that_was_named_is_taken(self):
        script = self.program("show", "#!/bin/sh\necho port=$MASTER_PORT\n")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = self.launch("--num_processes", "2", "--main_process_port", port, script)
            torchrun = subprocess.run([LAUNCHER.parent / "accel-torchrun", "--master_port", str(port), script],
                                      capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"cannot listen on 127.0.0.1:{port}: it is held by process {os.getpid()}", done.stderr)
        self.assertIn("--main_process_port 0 asks for a free one", done.stderr)
        ports = done.stdout.split()
        self.assertEqual((len(ports), len(set(ports))), (2, 1))
        self.assertNotIn(f"port={port}", ports)
        self.assertEqual(torchrun.returncode, 98, torchrun.stderr)
        self.assertRegex(torchrun.stderr, r"^accel-torchrun: error \[store.port_in_use\]")
        self.assertIn(str(port), torchrun.stderr)
        self.assertIn("give another port with --master-port, or", torchrun.stderr)

    def test_a_default_port_that_is_taken_is_no_error(self):
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # A test beside this one may have it for a moment; who has it longer is as good as we are.
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                try:
                    taken.bind(("127.0.0.1", 29500))
                    taken.listen()
                    break
                except OSError:
                    time.sleep(0.05)
            script = self.program("show", "#!/bin/sh\necho port=$MASTER_PORT\n")
            done = self.launch("--num_processes", "2", script)
        self.assertEqual(done.returncode, 0, done.stderr)
        ports = set(done.stdout.split())
        self.assertEqual(len(ports), 1)
        self.assertNotIn("port=29500", ports)

    def test_the_exit_code_of_the_first_failing_rank_is_ours(self):
        script = self.program("fail", "#!/bin/sh\nif [ $RANK = 1 ]; then echo out of tokens >&2; exit 7; fi\nexec sleep 60\n")
        done = self.launch("--num_processes", "3", script)
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("rank 1 of 3 ended with exit code 7", done.stderr)
        self.assertIn("last lines of rank 1:\n  | out of tokens\n", done.stderr)
        self.assertIn("others    2 other ranks were stopped", done.stderr)

    def test_a_signal_gives_128_and_its_number(self):
        script = self.program("die", "#!/bin/sh\nif [ $RANK = 0 ]; then kill -USR1 $$; fi\nexec sleep 60\n")
        done = self.launch("--num_processes", "2", script)
        self.assertEqual(done.returncode, 128 + signal.SIGUSR1, done.stderr)
        self.assertIn("rank 0 of 2 was ended by SIGUSR1", done.stderr)

    def test_a_missing_library_is_named(self):
        (self.folder / "gone.c").write_text("int gone(void) { return 0; }\n")
        (self.folder / "main.c").write_text("int gone(void);\nint main(void) { return gone(); }\n")
        compiler = os.environ.get("CC", "cc")
        for command in ([compiler, "-shared", "-fPIC", "-o", "libgone.so", "gone.c"],
                        [compiler, "-o", "needs_gone", "main.c", "-L.", "-lgone"]):
            subprocess.run(command, cwd=self.folder, check=True)
        (self.folder / "libgone.so").unlink()
        self.assert_is_missing_library(self.launch("--num_processes", "2", "needs_gone"))

    def assert_is_missing_library(self, done):
        self.assertEqual(done.returncode, 127, done.stderr)
        self.assertIn("[worker.library_missing]", done.stderr)
        self.assertIn("libgone.so", done.stderr)
        self.assertIn("ldd ", done.stderr)

    def test_a_file_that_no_machine_runs_says_so(self):
        done = self.launch("--num_processes", "2", self.program("noise", "\x01\x02\x03\x04"))
        self.assertEqual(done.returncode, 126, done.stderr)
        self.assertIn("Exec format error", done.stderr)

    def test_quiet_keeps_only_the_status(self):
        done = self.launch("--quiet", "--num_processes", "2", self.program("fail", "#!/bin/sh\nexit 9\n"))
        self.assertEqual(done.returncode, 9)
        self.assertEqual(done.stderr, "")

    def test_help_and_dry_run_start_nothing(self):
        marker = self.folder / "started"
        script = self.program("touch", f"#!/bin/sh\ntouch {marker}\n")
        for arguments in (["--help"], ["--version"], ["--dry-run", "--num_processes", "2", script]):
            done = self.launch(*arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotEqual(done.stdout, "")
        self.assertFalse(marker.exists())


if __name__ == "__main__":
    if not LAUNCHER.exists():
        print(f"launch_errors: {LAUNCHER} is not built")
        sys.exit(1)
    unittest.main()
