#!/usr/bin/env python3
"""Each file of configs/ starts its workers, on a machine without GPUs, and tells them what it says."""
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from programs import free_port  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("ACCEL_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[3]))
BUILD = pathlib.Path(os.environ.get("ACCEL_BUILD_DIR", SOURCE / "build"))
CONFIGS = SOURCE / "configs"

# File: flags beside it, and what each worker must find in its environment.
ZOO = {
    "deepspeed": ([], {"ACCELERATE_USE_DEEPSPEED": "true"}),
    "deepspeed_json": ([], {"ACCELERATE_USE_DEEPSPEED": "true"}),
    "fp8_ao": ([], {"ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_FP8_BACKEND": "AO"}),
    "fp8_msamp": ([], {"ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_FP8_BACKEND": "MSAMP"}),
    "fp8_te": ([], {"ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_FP8_BACKEND": "TE"}),
    "fsdp1": ([], {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1"}),
    "fsdp2": ([], {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}),
    "megatron": ([], {"ACCELERATE_USE_MEGATRON_LM": "true"}),
    "multi_cpu": ([], {"ACCELERATE_USE_CPU": "True"}),
    "multi_gpu": (["--cpu"], {"ACCELERATE_MIXED_PRECISION": "bf16"}),
    "parallelism": ([], {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}),
    "single": ([], {}),
    "slurm": (["--num_processes", "2"], {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}),
}
ELSEWHERE = {
    "agent": "no configuration of a launch: tests/unit/agent/config/agent_config_test.cc",
    "multi_node": "test_two_machines, below",
    "mpirun": "tests/peer/mpi_launch.py starts it where there is an mpirun",
    "sagemaker": "tests/peer/sagemaker_request.py shows what would be sent",
}


class ConfigZoo(unittest.TestCase):
    def test_every_file_is_tried(self):
        names = {path.stem for path in CONFIGS.glob("*.yaml")}
        self.assertEqual(names - set(ZOO) - set(ELSEWHERE), set(), "a file that no test starts")
        self.assertEqual(set(ZOO) - names, set())

    def test_every_file_says_how_to_run_it(self):
        for name in ZOO:
            head = (CONFIGS / f"{name}.yaml").read_text().split("compute_environment")[0]
            self.assertTrue(head.startswith("# "), name)
            self.assertTrue(f"configs/{name}.yaml" in head, f"{name}: the comment above shows no command")

    def test_files_start_their_workers(self):
        for name, (flags, expected) in ZOO.items():
            with self.subTest(name):
                path = CONFIGS / f"{name}.yaml"
                said = re.search(r"^num_processes: (\d+)", path.read_text(), re.M)
                num_workers = int(said.group(1)) if said else int(flags[-1])
                port = [] if "main_process_port" in path.read_text() or num_workers == 1 else ["--main_process_port", "0"]
                shown = " ".join(f"{key}=${{{key}-}}" for key in expected)
                done = subprocess.run([BUILD / "bin/accel-launch", "--config_file", path, *flags, *port, "--no_python", "sh",
                                       "-c", f"echo rank ${{RANK-0}} of ${{WORLD_SIZE-1}} {shown}"], cwd=SOURCE,
                                      env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                values = "".join(f" {key}={value}" for key, value in expected.items())
                self.assertEqual(sorted(line.rstrip() for line in done.stdout.splitlines()),
                                 [f"rank {rank} of {num_workers}{values}" for rank in range(num_workers)])

    def test_two_machines(self):
        """multi_node.yaml, with both machines here."""
        port = free_port()
        started = [subprocess.Popen([BUILD / "bin/accel-launch", "--config_file", CONFIGS / "multi_node.yaml", "--cpu",
                                     "--main_process_ip", "127.0.0.1", "--main_process_port", str(port), "--machine_rank",
                                     str(rank), "--no_python", "sh", "-c", "echo rank $RANK of $WORLD_SIZE node $GROUP_RANK"],
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                   for rank in range(2)]
        said = [child.communicate(timeout=60) for child in started]
        self.assertEqual([child.returncode for child in started], [0, 0], said)
        for rank, (out, _) in enumerate(said):
            first = 2 * rank
            self.assertEqual(sorted(out.splitlines()), [f"rank {first + i} of 4 node {rank}" for i in range(2)])


if __name__ == "__main__":
    sys.exit(unittest.main())
