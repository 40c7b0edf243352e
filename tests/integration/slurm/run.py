#!/usr/bin/env python3
"""accel-launch under a real slurmctld: allocations of one and two nodes, their launchers, and what breaks.

Run by ctest, as root; see cluster.py for what SLURM it is.
"""
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cluster as slurm

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
BIN = BUILD / "bin"
SKIPPED = 77  # what ctest takes for skipped

HELLO = ('echo "rank $RANK of $WORLD_SIZE node $GROUP_RANK on $SLURMD_NODENAME restart $TORCHELASTIC_RESTART_COUNT"\n'
         'touch "$0.$RANK.$TORCHELASTIC_RESTART_COUNT"\n')
UNTIL_STOP = 'while [ ! -e "$0.stop" ]; do sleep 0.05; done\n'


class SlurmTest(unittest.TestCase):
    CLUSTER = {}

    @classmethod
    def setUpClass(cls):
        cls.cluster = slurm.Cluster(**cls.CLUSTER)
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()
        cls.cluster.environment["PATH"] = f"{BIN}:{cls.cluster.environment['PATH']}"

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="accel-slurm-job-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(self.end_jobs)

    def end_jobs(self):
        self.cluster.run("scancel", "--user=root", "--full", check=False)
        self.cluster.run("scancel", "--user=root", check=False)
        self.cluster.wait(lambda: not self.cluster.run("squeue", "--noheader").stdout.strip(), "jobs do not end")
        self.cluster.wait(lambda: all(self.cluster.node_state(name) == "IDLE" for name in self.cluster.nodes), "the nodes do not become idle")

    def worker(self, text):
        path = self.folder / "worker.sh"
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path

    def script(self, command, *directives):
        path = self.folder / "job.sh"
        path.write_text("#!/bin/bash\n" + "".join(f"#SBATCH {line}\n" for line in directives) + f"{command}\n")
        path.chmod(0o755)
        return path

    def submit(self, script, *arguments, options=(), **environment):
        self.out = self.folder / "out"
        done = self.cluster.run("sbatch", "--parsable", f"--chdir={self.folder}", f"--output={self.out}", "--open-mode=append", *options, script, *arguments,
                                **environment)
        return done.stdout.strip()

    def launch(self, *arguments, nodes=2, options=()):
        """sbatch of one accel-launch, as the last thing that its shell does."""
        text = " ".join(f"'{part}'" for part in arguments)
        return self.submit(self.script(f"exec accel-launch {text}"), options=(f"--nodes={nodes}", *options))

    def said(self):
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def wait_for(self, part, count=1):
        self.cluster.wait(lambda: self.said().count(part) >= count, f"{part!r} is not said {count} times", more=self.said)

    def end(self, job):
        """How the job ended: its state and the exit code of its script."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        self.cluster.wait(lambda: self.cluster.job(job)["JobState"] in over, f"job {job} does not end", more=self.said)
        self.cluster.wait(lambda: not self.cluster.run("squeue", "--noheader", "--steps", f"--jobs={job}", check=False).stdout.strip(), "steps remain")
        known = self.cluster.job(job)
        return known["JobState"], int(known["ExitCode"].split(":")[0])

    def begin_now(self, job):
        """A job that is queued again waits two minutes. Some seconds it needs: slurmd knows by the second what it has killed."""
        self.cluster.wait(lambda: self.cluster.job(job)["Restarts"] == "1" and self.cluster.job(job)["JobState"] == "PENDING", "not queued again", more=self.said)
        self.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+4seconds")

    def hello_lines(self):
        return sorted(line for line in self.said().splitlines() if line.startswith("rank "))

    def assert_nothing_is_left(self):
        self.cluster.wait(lambda: not self.processes_of(self.folder), f"processes of {self.folder} remain")
        self.assertEqual([path.name for path in self.folder.glob(".accel-*")], [])

    @staticmethod
    def processes_of(folder):
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.readlink(entry / "cwd") == str(folder):
                        found.append((entry / "cmdline").read_bytes().replace(b"\0", b" "))
                except OSError:
                    pass
        return found

    def launcher_on(self, node):
        """The pid of the accel-launch that srun started on the node."""
        steps = self.cluster.processes_on(node)
        return next(pid for pid, title in steps.items() if title.split(" ")[0].endswith("accel-launch"))


class Slurm(SlurmTest):
    # ---- many nodes ----

    def test_the_batch_script_of_two_nodes_starts_both(self):
        job = self.launch("--num_processes", 4, self.worker(HELLO))
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        self.assertEqual(self.hello_lines(), [f"rank {r} of 4 node {r // 2} on n{r // 2 + 1} restart 0" for r in range(4)], self.said())
        self.assertNotIn("nothing says how many", self.said())
        self.assert_nothing_is_left()

    def test_torchrun_in_a_batch_script_is_torchrun_on_each_node(self):
        """Its defaults reach the nodes: no configuration file, no variables of Accelerate; and it says its own name."""
        (self.folder / "accelerate").mkdir()
        (self.folder / "accelerate/default_config.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: NO\nnum_processes: 3\n")
        worker = self.worker(HELLO + 'echo "precision ${ACCELERATE_MIXED_PRECISION-unsaid}"\n')
        job = self.submit(self.script(f"exec accel-torchrun {worker}"), options=("--nodes=2",), HF_HOME=self.folder)
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        self.assertEqual(self.hello_lines(), [f"rank {r} of 2 node {r} on n{r + 1} restart 0" for r in range(2)], self.said())
        self.assertEqual(self.said().count("precision unsaid"), 2, self.said())
        self.assertIn("accel-torchrun: ", self.said())
        self.assertNotIn("accel-launch: ", self.said())

    def test_deepspeeds_launcher_slurm_takes_the_nodes_of_the_allocation(self):
        job = self.launch("--use_deepspeed", "--deepspeed_multinode_launcher", "slurm", "--num_machines", 2, "--num_processes", 4,
                          self.worker(HELLO))
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        self.assertEqual(self.hello_lines(), [f"rank {r} of 4 node {r // 2} on n{r // 2 + 1} restart 0" for r in range(4)], self.said())

    def test_srun_with_one_task_a_node_is_one_launcher_a_node(self):
        job = self.submit(self.script(f"exec srun --ntasks-per-node=1 --kill-on-bad-exit=0 accel-launch --num_processes 4 {self.worker(HELLO)}"),
                          options=("--nodes=2",))
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        self.assertEqual(self.hello_lines(), [f"rank {r} of 4 node {r // 2} on n{r // 2 + 1} restart 0" for r in range(4)], self.said())
        self.assert_nothing_is_left()

    def test_one_node_of_a_larger_allocation_is_a_launch_on_one_machine(self):
        job = self.submit(self.script(f"exec srun --nodes=1 --ntasks=1 --nodelist=n2 accel-launch --num_processes 2 {self.worker(HELLO)}"), options=("--nodes=2",))
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        self.assertEqual(self.hello_lines(), [f"rank {r} of 2 node 0 on n2 restart 0" for r in range(2)], self.said())

    def test_a_task_for_each_rank_is_refused_with_the_line_to_use(self):
        job = self.submit(self.script(f"exec srun --ntasks-per-node=2 accel-launch {self.worker(HELLO)}"), options=("--nodes=2", "--ntasks-per-node=2"))
        self.assertEqual(self.end(job), ("FAILED", 2), self.said())
        self.assertIn("srun --nodes=2 --ntasks-per-node=1 --cpu-bind=none accel-launch --nproc_per_node 2", self.said())
        self.assertEqual(self.hello_lines(), [])

    def test_the_batch_script_of_two_components_names_the_line_that_takes_both(self):
        line = f"accel-launch --cpu --nproc_per_node 1 {self.worker(HELLO)}"
        srun = "srun --het-group=0-1 --ntasks-per-node=1 --cpu-bind=none"
        job = self.submit(self.script(f"{line}\nexec {srun} {line}", "--nodes=1", "hetjob", "--nodes=1"))
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        self.assertIn("2 components", self.said())
        self.assertIn(srun, self.said())
        self.assertEqual(self.hello_lines(), ["rank 0 of 2 node 0 on n1 restart 0", "rank 1 of 2 node 1 on n2 restart 0"], self.said())

    def test_two_nodes_never_become_jobs_of_one(self):
        job = self.launch("--nnodes", 1, self.worker(HELLO))
        self.assertEqual(self.end(job), ("FAILED", 2), self.said())
        self.assertIn("--nnodes 1 with 2 nodes in the allocation", self.said())
        self.assertEqual(self.hello_lines(), [])

    def test_the_code_of_the_first_failure_is_the_jobs(self):
        job = self.launch("--num_processes", 2, self.worker(HELLO + '[ $RANK = 1 ] && exit 9\nexec sleep 1000\n'))
        self.assertEqual(self.end(job), ("FAILED", 9), self.said())
        self.assert_nothing_is_left()

    # ---- faults ----

    def test_fault_71_a_failing_rank_ends_neither_step_nor_job(self):
        job = self.launch("--num_processes", 2, "--max_restarts", 1,
                          self.worker(HELLO + '[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 9\n'
                                      '[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0\nexec sleep 1000\n'))
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())

    def test_fault_71_a_launcher_that_is_killed_is_started_anew(self):
        worker = self.worker(HELLO + UNTIL_STOP)
        job = self.launch("--num_processes", 2, "--max_restarts", 3, worker)
        self.wait_for("restart 0", 2)
        os.kill(self.launcher_on("n2"), signal.SIGKILL)
        self.wait_for("restart 1", 2)
        self.assertIn("node n2: a new launcher is started there", self.said())
        self.assertIn("rank 1 of 2 node 1 on n2 restart 1", self.said())
        pathlib.Path(f"{worker}.stop").touch()
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        self.assert_nothing_is_left()

    def test_fault_37_a_node_that_is_lost_leaves_an_elastic_job_with_the_others(self):
        worker = self.worker(HELLO + UNTIL_STOP)
        job = self.submit(SOURCE / "deploy/slurm/elastic.sbatch", worker, options=("--nodes=2",), PROCESSES_PER_NODE="1", MIN_NODES="1")
        self.wait_for("restart 0", 2)
        self.cluster.kill_node("n2")
        self.addCleanup(self.cluster.start_node, "n2")
        self.wait_for("rank 0 of 1 node 0 on n1 restart 1")
        pathlib.Path(f"{worker}.stop").touch()
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())

    def test_fault_37_a_node_that_is_lost_for_good_ends_a_job_that_needs_it(self):
        job = self.launch("--num_processes", 2, "--max_restarts", 3, self.worker(HELLO + "exec sleep 1000\n"), options=("--no-kill",))
        self.wait_for("restart 0", 2)
        self.cluster.kill_node("n2")
        self.addCleanup(self.cluster.start_node, "n2")
        self.assertEqual(self.end(job), ("FAILED", 71), self.said())
        self.assertIn("[node.lost]", self.said())
        self.assert_nothing_is_left()

    def test_fault_70_scancel_ends_everything(self):
        job = self.launch("--num_processes", 4, self.worker(HELLO + "exec sleep 1000\n"))
        self.wait_for("restart 0", 4)
        self.cluster.run("scancel", job)
        self.assertEqual(self.end(job)[0], "CANCELLED", self.said())
        self.assert_nothing_is_left()

    def test_fault_70_a_second_signal_kills_what_ignores_the_first(self):
        job = self.launch("--num_processes", 2, "--stop_grace", 600, self.worker(HELLO + "trap '' TERM INT\nwhile :; do sleep 0.1; done\n"))
        self.wait_for("restart 0", 2)
        self.cluster.run("scancel", "--batch", "--signal=INT", job)
        self.wait_for("SIGINT: every node is told to stop")
        self.cluster.run("scancel", "--batch", "--signal=INT", job)
        self.assertEqual(self.end(job), ("FAILED", 130), self.said())
        self.assert_nothing_is_left()

    def test_fault_69_the_grace_ends_before_slurm_kills_the_launchers_too(self):
        """KillWait is 15 s in this cluster: with ten minutes of grace nobody would be left to tell how the job ended."""
        worker = self.worker(HELLO + "trap '' TERM INT\nwhile :; do sleep 0.1; done\n")
        for nodes in (1, 2):
            with self.subTest(nodes=nodes):
                job = self.submit(self.script(f"srun --cpu-bind=none --kill-on-bad-exit=0 accel-launch --nproc_per_node 2 --stop_grace 600 '{worker}'"),
                                  options=(f"--nodes={nodes}", "--ntasks-per-node=1"), ACCEL_SLURM_KILL_WAIT="7")
                self.wait_for("restart 0", 2 * nodes)
                self.cluster.run("scancel", "--signal=TERM", job)
                self.assertEqual(self.end(job), ("FAILED", 143), self.said())
                self.assert_nothing_is_left()
                self.out.unlink()

    # ---- preemption ----

    def test_fault_69_a_notice_to_the_script_reaches_every_node_and_the_job_is_queued_again(self):
        worker = self.worker(HELLO + '[ "$SLURM_RESTART_COUNT" = 1 ] && exit 0\n' f'exec {FAULT_WORKER} saves yes token\n')
        job = self.submit(SOURCE / "deploy/slurm/requeue.sbatch", worker, options=("--nodes=2",), PROCESSES_PER_NODE="1")
        self.wait_for("ready", 2)
        self.cluster.run("scancel", "--batch", "--signal=USR1", job)
        self.wait_for("every rank has saved: the job is queued again")
        self.begin_now(job)
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        self.assertEqual(self.cluster.job(job)["Restarts"], "1")

    def test_fault_69_a_job_that_did_not_save_is_not_queued_again(self):
        worker = self.worker(HELLO + f'[ $RANK = 0 ] && exec {FAULT_WORKER} saves yes token\nexec {FAULT_WORKER} saves not token\n')
        job = self.submit(SOURCE / "deploy/slurm/requeue.sbatch", worker, options=("--nodes=2",), PROCESSES_PER_NODE="1")
        self.wait_for("ready", 2)
        self.cluster.run("scancel", "--batch", "--signal=USR1", job)
        self.assertEqual(self.end(job), ("FAILED", 128 + signal.SIGTERM), self.said())
        self.assertEqual(self.cluster.job(job)["Restarts"], "0")

    def test_fault_69_a_notice_to_the_steps_is_one_to_the_job(self):
        job = self.launch("--num_processes", 2, FAULT_WORKER, "saves", "yes", "token")
        self.wait_for("ready", 2)
        self.cluster.run("scancel", "--signal=USR1", job)
        self.assertEqual(self.end(job), ("FAILED", 85), self.said())
        self.assert_nothing_is_left()

    def test_fault_69_workers_that_are_told_before_their_launchers_are_no_failure(self):
        job = self.launch("--num_processes", 2, "--max_restarts", 3, FAULT_WORKER, "saves", "yes", "token")
        self.wait_for("ready", 2)
        for line in self.said().splitlines():
            if line.startswith("ready "):
                os.kill(int(line.split()[1]), signal.SIGUSR1)
        self.assertEqual(self.end(job), ("FAILED", 85), self.said())
        self.assertEqual(self.said().splitlines().count("saved"), 2, self.said())
        self.assert_nothing_is_left()

    def test_fault_69_a_job_that_is_preempted_saves_and_goes_on_later(self):
        worker = self.worker(HELLO + '[ "$SLURM_RESTART_COUNT" = 1 ] && exit 0\n' f'exec {FAULT_WORKER} saves yes token\n')
        # It ends by itself before the partition's GraceTime is over: so the script queues it again, not SLURM.
        job = self.submit(SOURCE / "deploy/slurm/requeue.sbatch", worker, options=("--nodes=2",), PROCESSES_PER_NODE="1")
        self.wait_for("ready", 2)
        out = self.out
        urgent = self.cluster.run("sbatch", "--parsable", "--partition=high", "--nodes=2", "--exclusive", f"--output={self.folder}/urgent", "--wrap=true").stdout.strip()
        self.assertEqual(self.end(urgent), ("COMPLETED", 0))
        self.out = out
        self.begin_now(job)
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        self.assertEqual(self.said().splitlines().count("saved"), 2, self.said())

    # ---- the scripts of deploy/slurm ----

    def test_the_scripts_run_as_they_are(self):
        for script, nodes in (("one_node", 1), ("requeue", 1), ("many_nodes", 2), ("elastic", 2)):
            with self.subTest(script=script):
                job = self.submit(SOURCE / f"deploy/slurm/{script}.sbatch", self.worker(HELLO), PROCESSES_PER_NODE="2")
                self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
                self.assertEqual(sum(f"of {2 * nodes} " in line for line in self.hello_lines()), 2 * nodes, self.said())
                self.out.unlink()


FAULT_WORKER = next((path for path in (BUILD / "tests/fault_worker", BUILD / "bin/tests/fault_worker") if path.exists()), BUILD / "tests/fault_worker")

if __name__ == "__main__":
    why = slurm.missing()
    if why:
        print(f"skipped: {why}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=1)
