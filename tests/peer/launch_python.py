#!/usr/bin/env python3
"""Python programs that know nothing of accel run under accel-launch as under their own launchers."""
import json
import os
import subprocess
import sys
import unittest

SOURCE = os.environ.get("ACCEL_SOURCE_DIR", os.getcwd())
BUILD = os.environ.get("ACCEL_BUILD_DIR", os.path.join(SOURCE, "build"))
PEER = os.path.join(SOURCE, ".deps/peer/bin/python")
SCRIPTS = os.path.join(SOURCE, "tests/peer/scripts")
if not os.path.exists(PEER):
    print(f"skipped: {PEER} is missing; run scripts/setup.sh")
    sys.exit(77)


def launch(*arguments):
    """Runs accel-launch --cpu with the peer's python first on PATH, as in its activated environment."""
    return launch_as("--cpu", *arguments)


def launch_as(*arguments):
    environment = dict(os.environ)
    environment["PATH"] = os.path.dirname(PEER) + ":" + environment["PATH"]
    environment["PYTHONPATH"] = SCRIPTS
    environment.pop("ACCEL_CHANNEL", None)
    done = subprocess.run([os.path.join(BUILD, "bin/accel-launch"), *arguments],
                          capture_output=True, text=True, timeout=280, env=environment)
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done, sorted(results, key=lambda result: result["rank"])


def script(name):
    return os.path.join(SCRIPTS, name)


class TorchDistributed(unittest.TestCase):
    def check_results(self, done, results, restarts=0, arguments=()):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([result["rank"] for result in results], [0, 1], done.stderr)
        for result in results:
            self.assertEqual(result["world"], 2)
            self.assertEqual(result["sum"], 3.0)
            self.assertEqual(result["ranks"], [0, 1])
            self.assertEqual(result["restarts"], restarts)
            self.assertEqual(result["arguments"], list(arguments))

    def test_a_script_on_gloo(self):
        done, results = launch("--num_processes", "2", script("distributed_job.py"), "--flag", "x")
        self.check_results(done, results, arguments=["--flag", "x"])

    def test_a_module(self):
        done, results = launch("--num_processes", "2", "-m", "distributed_job")
        self.check_results(done, results)

    def test_a_program_that_is_no_script(self):
        done, results = launch("--num_processes", "2", "--no_python", PEER, script("distributed_job.py"))
        self.check_results(done, results)

    def test_a_restart_begins_with_an_empty_store(self):
        done, results = launch("--num_processes", "2", "--max_restarts", "1",
                               script("distributed_job.py"), "--fail-first")
        self.check_results(done, results, restarts=1, arguments=["--fail-first"])

    def test_the_exit_code_is_the_workers_when_no_restart_is_left(self):
        done, results = launch("--num_processes", "2", script("distributed_job.py"), "--fail-first")
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertEqual(results, [])


class PythonTraceback(unittest.TestCase):
    """Without --log_dir: recorded errors come through the error file, others are in stderr's tail."""

    def check_report(self, done):
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("rank 1 of 2 ended with exit code 1", done.stderr)
        self.assertIn("in load_batch", done.stderr)
        self.assertIn("ValueError: bad data in shard 7", done.stderr)

    def test_of_a_recorded_error_is_shown_and_is_the_cause(self):
        done, _ = launch("--num_processes", "2", script("raising_job.py"))
        self.check_report(done)
        self.assertRegex(done.stderr, r"cause +ValueError: bad data in shard 7")

    def test_of_a_recorded_error_is_shown_though_stderr_saw_nothing(self):
        done, _ = launch("--num_processes", "2", script("raising_job.py"), "--quiet")
        self.check_report(done)
        self.assertIn("traceback of rank 1:", done.stderr)

    def test_of_a_plain_exception_is_in_the_last_lines(self):
        done, _ = launch("--num_processes", "2", script("raising_job.py"), "--plain")
        self.check_report(done)
        self.assertIn("last lines of rank 1:", done.stderr)


class HuggingFaceAccelerate(unittest.TestCase):
    def test_trains_on_two_processes(self):
        done, results = launch("--num_processes", "2", script("accelerate_job.py"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([result["rank"] for result in results], [0, 1], done.stderr)
        for result in results:
            self.assertEqual(result["world"], 2)
            self.assertEqual(result["type"], "DistributedType.MULTI_CPU")
            self.assertEqual(result["ranks"], [0, 1])
            self.assertTrue(result["equal_weights"])
            self.assertLess(result["last_loss"], 0.1 * result["first_loss"])

    def test_is_one_job_where_no_gpu_is_visible(self):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.addCleanup(os.environ.pop, "CUDA_VISIBLE_DEVICES")
        done, results = launch_as("--num_processes", "2", "--main_process_port", "0", script("accelerate_world.py"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(results, [{"rank": rank, "world": 2, "device": "cpu"} for rank in (0, 1)], done.stderr)
        self.assertIn("no GPU is visible: the workers compute on the CPU", done.stderr)

    def test_runs_alone(self):
        done, results = launch("--num_processes", "1", script("accelerate_job.py"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([result["world"] for result in results], [1], done.stderr)
        self.assertEqual(results[0]["type"], "DistributedType.NO")


if __name__ == "__main__":
    unittest.main()
