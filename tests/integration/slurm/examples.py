#!/usr/bin/env python3
"""The scripts of examples/cluster/slurm under a real slurmctld: with GPUs that are files, with FSDP, with mpirun.

Run by ctest, as root; see cluster.py for what SLURM it is.
"""
import re
import shutil
import sys
import unittest

from run import BUILD, HELLO, SKIPPED, SOURCE, SlurmTest, slurm

sys.path.append(str(SOURCE / "tests/integration"))
from programs import free_port  # noqa: E402

SCRIPTS = SOURCE / "examples/cluster/slurm"


class Examples(SlurmTest):
    CLUSTER = {"gpus": 2}

    def losses(self):
        return {int(epoch): float(loss) for epoch, loss in re.findall(r"epoch (\d+) loss ([\d.e-]+)", self.said())}

    def expect_trained(self, job):
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        losses = self.losses()
        self.assertEqual(sorted(losses), list(range(20)), self.said())
        self.assertLess(losses[19], 0.01)  # the parabola's own variance is 0.089

    def test_a_worker_for_each_gpu_of_the_nodes(self):
        worker = self.worker(HELLO + 'echo "precision $ACCELERATE_MIXED_PRECISION"\n')
        job = self.submit(SCRIPTS / "gpus.sbatch", worker, options=("--gpus-per-node=2",))
        self.assertEqual(self.end(job), ("COMPLETED", 0), self.said())
        self.assertEqual(self.hello_lines(), [f"rank {r} of 4 node {r // 2} on n{r // 2 + 1} restart 0" for r in range(4)], self.said())
        self.assertEqual(self.said().count("precision bf16"), 4)

    def test_fsdp_over_two_nodes(self):
        worker = self.worker('echo "rank $RANK: fsdp $ACCELERATE_USE_FSDP $FSDP_SHARDING_STRATEGY"\nexec "$@"\n')
        job = self.submit(SCRIPTS / "fsdp.sbatch", worker, BUILD / "examples/minimal", PROCESSES_PER_NODE="1", STRATEGY="SHARD_GRAD_OP")
        self.expect_trained(job)
        self.assertEqual(self.hello_lines(), [f"rank {r}: fsdp true SHARD_GRAD_OP" for r in range(2)], self.said())

    @unittest.skipUnless(shutil.which("mpirun"), "needs mpirun")
    def test_mpirun_starts_the_workers_of_both_nodes(self):
        job = self.submit(SCRIPTS / "mpi.sbatch", BUILD / "examples/minimal", MAIN_ADDRESS="127.0.0.1", MAIN_PORT=str(free_port()),
                          OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.expect_trained(job)
        self.assertEqual((self.folder / f"hosts.{job}").read_text(), "n1 slots=2\nn2 slots=2\n")


if __name__ == "__main__":
    why = slurm.missing() or ("" if (BUILD / "examples/minimal").exists() else "this build has no examples")
    if why:
        print(f"skipped: {why}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
