#!/usr/bin/env python3
"""accel merge-weights gives the file that the peer's own merge gives, to the byte, from what PyTorch itself has saved."""
import os
import pathlib
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

from peer_python import BUILD, PEER, SOURCE

import torch
import torch.distributed.checkpoint as dcp
from accelerate.utils import merge_fsdp_weights
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed._shard import sharded_tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

RANKS = 2


def values(rows, columns, dtype):
    numbers = torch.arange(rows * columns).reshape(rows, columns)
    return (numbers % 3 == 0) if dtype == torch.bool else (numbers % 100).to(dtype)


def save_all(folder):
    """One rank: what torch.distributed.checkpoint writes of every dtype, placement and shape."""
    mesh = torch.distributed.init_device_mesh("cpu", (RANKS,))
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
              torch.int8, torch.uint8, torch.bool, torch.complex64]
    def shared(tensor, placement):  # every rank has it: nothing is sent
        return distribute_tensor(tensor, mesh, [placement], src_data_rank=None)

    state = {}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        state[f"rows.{name}"] = shared(values(7, 5, dtype), Shard(0))  # 4 + 3 rows
        state[f"columns.{name}"] = shared(values(3, 8, dtype), Shard(1))
        state[f"whole.{name}"] = shared(values(2, 3, dtype), Replicate())
    # What FSDP 1 saves: shards of the rows, the last of which may be smaller.
    rank = torch.distributed.get_rank()
    begin, rows = (0, 4) if rank == 0 else (4, 3)
    shard = sharded_tensor.Shard.from_tensor_and_offsets(values(7, 5, torch.float32)[begin:begin + rows].clone(), [begin, 0], rank)
    state["sharded"] = sharded_tensor.init_from_local_shards([shard], 7, 5)
    state["plain"] = values(4, 4, torch.float32)
    state["tied"] = state["plain"]
    state["middle"] = shared(torch.arange(120.).reshape(3, 8, 5), Shard(1))
    state["one_row"] = shared(values(1, 5, torch.float32), Shard(0))  # nothing on rank 1
    state["transposed"] = torch.arange(12.).reshape(3, 4).t()
    state["channels_last"] = torch.arange(2. * 3 * 4 * 5).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last)
    state["slice"] = torch.arange(100.)[10:20]
    state["every_second"] = torch.arange(100.)[::2]
    state["single"] = torch.tensor(3, dtype=torch.int64)
    state["empty"] = torch.empty(0, 3)
    state["parameter"] = torch.nn.Parameter(torch.ones(3))
    state["float8"] = torch.arange(8.).to(torch.float8_e4m3fn)
    state["uint16"] = torch.tensor([1, 65535], dtype=torch.uint16)
    state["large"] = shared(torch.randn(3000, 700, generator=torch.Generator().manual_seed(1)), Shard(0))
    dcp.save({"model": state}, checkpoint_id=os.path.join(folder, "model"))
    dcp.save(state, storage_writer=FileSystemWriter(os.path.join(folder, "flat"), thread_count=2))
    dcp.save({"w": state["plain"], "u": state["large"]},
             storage_writer=FileSystemWriter(os.path.join(folder, "one_each"), single_file_per_rank=False))
    net = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 3, bias=False)).bfloat16()
    torch.distributed.fsdp.fully_shard(net, mesh=mesh)
    dcp.save({"model": get_model_state_dict(net)}, checkpoint_id=os.path.join(folder, "fsdp", "pytorch_model_fsdp_0"))
    dcp.save({"model": {"layer": {"w": state["plain"]}, "extra": [1, 2]}}, checkpoint_id=os.path.join(folder, "nested"))


def run_rank(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    save_all(folder)
    torch.distributed.barrier()
    os._exit(0)  # threads of the peer's process group may outlive Python, and end it with abort()


def accel(*arguments, **options):
    return subprocess.run([os.path.join(BUILD, "bin/accel"), "merge-weights", *map(str, arguments)],
                          capture_output=True, text=True, check=False, **options)


class RunsWhenRead:
    """What a hostile pickle looks like."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class MergeWeights(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        ranks = [subprocess.Popen([sys.executable, __file__, "rank", str(rank), cls.scratch.name], stderr=subprocess.PIPE)
                 for rank in range(RANKS)]
        try:
            for rank in ranks:
                said = rank.communicate()[1]
                assert rank.returncode == 0, said.decode()
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def merged(self, checkpoint):
        """Our merge, in bytes."""
        with tempfile.TemporaryDirectory() as out:
            done = accel(checkpoint, out)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(os.listdir(out), ["model.safetensors"])
            return (pathlib.Path(out) / "model.safetensors").read_bytes()

    def expected(self, checkpoint):
        with tempfile.TemporaryDirectory() as out:
            merge_fsdp_weights(str(checkpoint), out)
            return (pathlib.Path(out) / "model.safetensors").read_bytes()

    def test_the_file_is_the_peers_to_the_byte(self):
        for name in ("model", "flat", "one_each", "fsdp/pytorch_model_fsdp_0"):
            with self.subTest(name):
                self.assertEqual(self.merged(self.folder / name), self.expected(self.folder / name))

    def loaded(self, checkpoint):
        """Our --unsafe_serialization, loaded as a careful user does."""
        with tempfile.TemporaryDirectory() as out:
            done = accel(checkpoint, out, "--unsafe_serialization")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(os.listdir(out), ["pytorch_model.bin"])
            path = pathlib.Path(out) / "pytorch_model.bin"
            with zipfile.ZipFile(path) as archive:
                self.assertIsNone(archive.testzip(), "a checksum is wrong")
            mapped = torch.load(path, weights_only=True, mmap=True)
            read = torch.load(path, weights_only=True)
            self.assert_same(mapped, read)
            return read

    def assert_same(self, tensors, expected):
        self.assertEqual(list(sorted(tensors)), list(sorted(expected)))
        for name, tensor in tensors.items():
            other = expected[name]
            self.assertEqual((type(tensor), tensor.dtype, tensor.shape, tensor.stride()),
                             (type(other), other.dtype, other.shape, other.stride()), name)
            self.assertTrue(torch.equal(tensor.flatten().view(torch.uint8), other.flatten().view(torch.uint8)), name)

    def test_the_pickle_has_the_tensors_of_the_peers(self):
        for name in ("model", "fsdp/pytorch_model_fsdp_0"):
            with self.subTest(name), tempfile.TemporaryDirectory() as out:
                merge_fsdp_weights(str(self.folder / name), out, safe_serialization=False)
                peers = torch.load(pathlib.Path(out) / "pytorch_model.bin", weights_only=True)
                self.assert_same(self.loaded(self.folder / name), peers)

    def test_the_pickle_of_numbered_files_has_tied_weights(self):
        folder = self.folder / "numbered"
        folder.mkdir()
        embedding, head = torch.randn(9, 4), torch.arange(6, dtype=torch.bfloat16)
        save_file({"embedding": embedding}, folder / "one.safetensors", metadata={"format": "pt", "head": "embedding"})
        save_file({"bias": head}, folder / "two.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors.index.json").write_text(
            '{"weight_map": {"embedding": "one.safetensors", "bias": "two.safetensors"}}')
        loaded = self.loaded(folder)
        self.assert_same(loaded, {"embedding": embedding, "head": embedding, "bias": head})
        self.assertEqual(loaded["head"].data_ptr(), loaded["embedding"].data_ptr())

    def test_any_protocol_of_the_metadata_is_read(self):
        with open(self.folder / "fsdp/pytorch_model_fsdp_0/.metadata", "rb") as file:
            metadata = pickle.load(file)
        copy = self.folder / "protocols"
        shutil.copytree(self.folder / "fsdp/pytorch_model_fsdp_0", copy)
        wanted = self.merged(copy)
        for protocol in (2, 3, 4, 5):
            with self.subTest(protocol):
                (copy / ".metadata").write_bytes(pickle.dumps(metadata, protocol=protocol))
                self.assertEqual(self.merged(copy), wanted)

    def test_nested_names_are_joined_and_what_is_no_tensor_is_named(self):
        out = self.folder / "nested_out"
        done = accel(self.folder / "nested", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left out, since it is no tensor: extra", done.stderr)
        with safe_open(out / "model.safetensors", "pt") as file:
            self.assertEqual(list(file.keys()), ["layer.w"])
            self.assertTrue(torch.equal(file.get_tensor("layer.w"), values(4, 4, torch.float32)))
        kept = accel(self.folder / "nested", out, "--remove_checkpoint_dir")
        self.assertEqual(kept.returncode, 1)
        self.assertIn("--remove_checkpoint_dir, which would lose it", kept.stderr)

    def test_a_pickle_that_runs_something_is_refused_and_not_run(self):
        for protocol in (2, 4):
            hostile, witness = self.folder / f"hostile{protocol}", self.folder / "witness"
            shutil.copytree(self.folder / "nested", hostile)
            (hostile / ".metadata").write_bytes(pickle.dumps({"a": RunsWhenRead(witness)}, protocol=protocol))
            done = accel(hostile, self.folder / "hostile_out")
            self.assertEqual(done.returncode, 1)
            self.assertIn("the pickle names posix system", done.stderr)
            self.assertFalse(witness.exists())
            self.assertFalse((self.folder / "hostile_out").exists())

    def test_memory_that_runs_out_is_an_error_and_no_crash(self):
        hostile = self.folder / "large"
        hostile.mkdir()
        (hostile / ".metadata").write_bytes(b"\x80\x02" + b")" * (16 << 20) + b".")
        def limit_memory():
            resource.setrlimit(resource.RLIMIT_AS, (150 << 20, 150 << 20))
        done = accel(hostile, self.folder / "large_out", preexec_fn=limit_memory)
        self.assertEqual(done.returncode, 137, done.stderr)
        self.assertIn("error [memory.exhausted]: memory ran out while", done.stderr)

    def test_the_folder_above_is_refused_in_the_peers_words(self):
        above = self.folder / "fsdp"
        done = accel(above, self.folder / "out")
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"Tried to load from {above} but couldn't find a valid metadata file. However, a potential model "
                      "checkpoint directory exists.", done.stderr)
        self.assertIn(f"merge {above}/pytorch_model_fsdp_0 instead", done.stderr)
        missing = self.folder / "missing"
        with self.assertRaises(ValueError) as raised:
            merge_fsdp_weights(str(missing), str(self.folder / "out"))
        self.assertIn(str(raised.exception), accel(missing, self.folder / "out").stderr)

    def test_the_checkpoint_goes_only_after_the_merge(self):
        copy, out = self.folder / "removed", self.folder / "removed_out"
        shutil.copytree(self.folder / "one_each", copy)
        wanted = self.merged(copy)
        torn = sorted(copy.glob("*.distcp"))[0]
        whole = torn.read_bytes()
        torn.write_bytes(whole[:-100])
        failed = accel(copy, out, "--remove_checkpoint_dir")
        self.assertEqual(failed.returncode, 1, failed.stderr)
        self.assertTrue(copy.exists())
        self.assertFalse(out.exists(), "the folder was made for the result")
        torn.write_bytes(whole)
        self.assertEqual(accel(copy, copy / "inside", "--remove_checkpoint_dir").returncode, 2)
        done = accel(copy, out, "--remove_checkpoint_dir")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(copy.exists())
        self.assertEqual((out / "model.safetensors").read_bytes(), wanted)


class RanksOfALaunch(unittest.TestCase):
    """What two ranks of the peer's FSDP, run by accel-launch, have saved with save_state()."""

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name) / "saved"
        path = os.path.dirname(PEER) + ":" + os.environ["PATH"]
        done = subprocess.run([os.path.join(BUILD, "bin/accel-launch"), "--use_fsdp", "--fsdp_version", "2", "--num_processes", "2",
                               "--fsdp_state_dict_type", "SHARDED_STATE_DICT", "--fsdp_cpu_ram_efficient_loading", "false",
                               os.path.join(SOURCE, "tests/peer/scripts/fsdp_save_job.py"), str(cls.folder)],
                              env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr

    def test_the_model_is_the_peers_own_merge_to_the_byte(self):
        model, ours, peers = self.folder / "pytorch_model_fsdp_0", self.folder / "ours", self.folder / "peers"
        done = accel(model, ours)
        self.assertEqual(done.returncode, 0, done.stderr)
        merge_fsdp_weights(str(model), str(peers))
        self.assertEqual((ours / "model.safetensors").read_bytes(), (peers / "model.safetensors").read_bytes())
        with safe_open(ours / "model.safetensors", "pt") as file:
            self.assertEqual(file.get_tensor("first.weight").shape, (5, 7))
            self.assertEqual(file.get_tensor("norm.num_batches_tracked").item(), 1)

    def test_tensors_of_the_optimizer_are_merged_and_its_numbers_named(self):
        done = accel(self.folder / "optimizer_0", self.folder / "optimizer")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left out, since it is no tensor: param_groups", done.stderr)
        with safe_open(self.folder / "optimizer/model.safetensors", "pt") as file:
            self.assertEqual(file.get_tensor("state.first.weight.exp_avg").shape, (5, 7))
        kept = accel(self.folder / "optimizer_0", self.folder / "again", "--remove_checkpoint_dir")
        self.assertEqual(kept.returncode, 1)
        self.assertTrue((self.folder / "optimizer_0/.metadata").exists())

    def test_the_folder_of_the_whole_state_names_both(self):
        done = accel(self.folder, self.folder / "out")
        self.assertEqual(done.returncode, 1)
        self.assertIn("potential model and optimizer checkpoint directories exist", done.stderr)
        self.assertIn(f"merge {self.folder}/optimizer_0 or {self.folder}/pytorch_model_fsdp_0 instead", done.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        run_rank(int(sys.argv[2]), sys.argv[3])
    else:
        unittest.main()
