#!/usr/bin/env python3
"""libaccel trains, accumulates and schedules as PyTorch DDP and HF Accelerate do.

Losses: two Python processes train with torch.nn.parallel.DistributedDataParallel on Gloo, two C++ processes
with accel::Accelerator, from the same weights on the same batches with one thread each. Both call the same
ATen kernels in the same order, and the sum of two ranks' gradients is the same in either order, so fp32
losses must be equal to the bit. Under bf16 autocast they are equal only up to rounding: Python casts the
weight of a linear layer and multiplies by its transpose, C++ transposes and then casts, and the matrix
kernels may add up in another order. See BF16_TOLERANCE.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from peer_python import BUILD, PEER

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from programs import free_port  # noqa: E402

import contextlib
import math

import torch
from safetensors.torch import load_file, save_file

TOOL = os.path.join(BUILD, "tests/train_peer")
RANKS = 2
BATCHES = 12
SAMPLES = 6
# bf16 has 8 bits: one rounding is off by at most 2^-9 of the value. The logits are sums of at most 32
# products of rounded numbers of order 1 (three layers), the loss is their log-sum-exp, of order 1; 12 steps
# with rate 0.1 and momentum 0.9 (at most 10 times the rate) carry earlier differences on.
BF16_TOLERANCE = 3 * 2.0 ** -9 * 10


def make_model(name):
    nn = torch.nn
    if name == "mlp":
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8 * 8, 4))


def write_case(name, path, batches=BATCHES, ranks=RANKS):
    torch.manual_seed(3)
    tensors = {"model." + key: value for key, value in make_model(name).state_dict().items()}
    shape = (8,) if name == "mlp" else (1, 8, 8)
    tensors["inputs"] = torch.randn(batches, ranks, SAMPLES, *shape)
    tensors["labels"] = torch.randint(0, 4, (batches, ranks, SAMPLES))
    save_file(tensors, path)


def ddp_worker(name, path, precision, accumulation, *hooks):
    """One rank of the peer: plain PyTorch, as its documentation shows it; hooks as Accelerate registers them."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    tensors = load_file(path)
    net = make_model(name)
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    model = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    if hooks:
        from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

        name, *columns = hooks[0].split(":")
        options = {
            option: DDPCommunicationHookType(hook)
            for option, hook in zip(("comm_hook", "comm_wrapper"), (name, *hooks[1:]))}
        if columns:
            mend_batched_power_sgd()
            options["comm_state_option"] = {
                "matrix_approximation_rank": int(columns[0]), "start_powerSGD_iter": 2,
                "warm_start": "cold" not in columns}
        DistributedDataParallelKwargs(**options).register_comm_hook(model)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def forward(batch):
        if precision == "no":
            return model(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = model(batch)
        return output.float()

    def loss_of(index):
        return torch.nn.functional.cross_entropy(
            forward(tensors["inputs"][index][rank]), tensors["labels"][index][rank])

    for batch in range(BATCHES):
        syncs = (batch + 1) % accumulation == 0
        with contextlib.nullcontext() if syncs else model.no_sync():
            loss = loss_of(batch)
            (loss / accumulation).backward()
        if syncs:
            optimizer.step()
            optimizer.zero_grad()
        print(float(loss.item()).hex())
    model.eval()
    with torch.no_grad():
        print(float(loss_of(0).item()).hex())
    for parameter in net.parameters() if hooks else ():
        print(parameter.detach().numpy().tobytes().hex())
    leave_group()


def mend_batched_power_sgd():
    """PyTorch 2.11 gives its orthogonalization one matrix where that asserts a batch of them: the batched hook never runs."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    original = powerSGD_hook._orthogonalize
    powerSGD_hook._orthogonalize = lambda matrices, epsilon=0: original(
        matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)


def leave_group():
    """Ends this rank when all have what they came for, without the tear-down of PyTorch: its threads end a process by
    terminate() now and then while the interpreter shuts down, and what is compared is printed already."""
    store, ranks = torch.distributed.distributed_c10d._get_default_store(), torch.distributed.get_world_size()
    for stage in ("done", "left"):
        store.set(f"{stage}/{torch.distributed.get_rank()}", "")
        if stage == "done" or torch.distributed.get_rank() == 0:  # rank 0 hosts the store
            store.wait([f"{stage}/{rank}" for rank in range(ranks)])
    sys.stdout.flush()
    os._exit(0)


def accelerate_worker(accumulations):
    """One rank of HF Accelerate: when it syncs, and where the schedule stands after each batch."""
    from accelerate import Accelerator
    from accelerate.state import GradientState

    for accumulation in accumulations:
        GradientState._reset_state()
        accelerate_sequence(Accelerator(gradient_accumulation_steps=accumulation, cpu=True))
    Accelerator().end_training()
    sys.stdout.flush()
    os._exit(0)  # for the reason of leave_group()


def accelerate_sequence(accelerator):
    net = torch.nn.Linear(1, 1)
    sgd = torch.optim.SGD(net.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: 1.0 - 0.01 * step)
    numbers = torch.utils.data.DataLoader([torch.full((1,), float(i)) for i in range(80)], batch_size=8)
    model, optimizer, loader, scheduler = accelerator.prepare(net, sgd, numbers, schedule)
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).mean() * 0.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            print(int(accelerator.sync_gradients), float(scheduler.get_last_lr()[0]).hex(),
                  schedule.last_epoch, schedule._step_count)


def run_ranks(command, ranks):
    """Runs a command as the ranks of a job; returns the lines of each."""
    port = str(free_port())
    workers = []
    for rank in range(ranks):
        environment = dict(
            os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
            LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
            TORCHELASTIC_USE_AGENT_STORE="False", OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true",
            # Without it MKL's sums depend on where in memory operands lie; seen on AMD EPYC in Linear(16, 1).
            MKL_CBWR="COMPATIBLE")
        workers.append(subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outputs = []
    for rank, worker in enumerate(workers):
        output, errors = worker.communicate(timeout=240)
        if worker.returncode != 0:
            for other in workers:
                other.kill()
                other.wait()
            raise AssertionError(f"rank {rank} of {command}: exit {worker.returncode}\n{errors}")
        outputs.append(output.splitlines())
    return outputs


def run_peer(ranks, *arguments, script=os.path.abspath(__file__)):
    return run_ranks([PEER, script, "--worker", *map(str, arguments)], ranks)


def run_accel(ranks, *arguments):
    return run_ranks([TOOL, *map(str, arguments)], ranks)


class Losses(unittest.TestCase):
    def compare(self, model, precision, accumulation, tolerance):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "case.safetensors")
            write_case(model, path)
            peer = run_peer(RANKS, "ddp", model, path, precision, accumulation)
            accel = run_accel(RANKS, "loss", model, path, precision, accumulation)
        for rank in range(RANKS):
            expected = [float.fromhex(line) for line in peer[rank]]
            found = [float.fromhex(line) for line in accel[rank]]
            self.assertEqual(len(found), BATCHES + 1)
            self.assertEqual(len(expected), BATCHES + 1)
            self.assertLess(min(expected), expected[0], "the peer did not learn anything")
            for step, (left, right) in enumerate(zip(expected, found)):
                self.assertLessEqual(
                    abs(left - right), tolerance,
                    f"{model}, {precision}, accumulation {accumulation}, rank {rank}, step {step}: "
                    f"peer {left.hex()}, accel {right.hex()}")

    def test_mlp_has_the_losses_of_ddp_to_the_bit(self):
        self.compare("mlp", "no", 1, 0.0)

    def test_mlp_with_accumulation_has_the_losses_of_ddp_to_the_bit(self):
        self.compare("mlp", "no", 3, 0.0)

    def test_conv_with_batchnorm_has_the_losses_of_ddp_to_the_bit(self):
        self.compare("conv", "no", 1, 0.0)

    def test_conv_with_batchnorm_and_accumulation_has_the_losses_of_ddp_to_the_bit(self):
        self.compare("conv", "no", 2, 0.0)

    def compare_hooks(self, model, accumulation, *hooks):
        """Losses and weights to the bit: of two ranks' rounded gradients there is one sum, rounded once."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "case.safetensors")
            write_case(model, path)
            peer = run_peer(RANKS, "ddp", model, path, "no", accumulation, *hooks)
            accel = run_accel(RANKS, "loss", model, path, "no", accumulation, *hooks)
            plain = run_accel(RANKS, "loss", model, path, "no", accumulation)
        for rank in range(RANKS):
            losses, weights = peer[rank][:BATCHES + 1], peer[rank][BATCHES + 1:]
            self.assertEqual([float.fromhex(line) for line in accel[rank][:BATCHES + 1]],
                             [float.fromhex(line) for line in losses], f"{model}, {hooks}, rank {rank}")
            self.assertGreater(len(weights), 3)
            self.assertEqual(accel[rank][BATCHES + 1:], weights, f"{model}, {hooks}, rank {rank}")
            self.assertNotEqual(plain[rank], accel[rank][:BATCHES + 1], "the hook changed nothing")

    def test_gradients_compressed_to_fp16_have_the_losses_and_weights_of_ddp_to_the_bit(self):
        self.compare_hooks("mlp", 1, "fp16")
        self.compare_hooks("conv", 2, "fp16")

    def test_gradients_compressed_to_bf16_have_the_losses_and_weights_of_ddp_to_the_bit(self):
        self.compare_hooks("mlp", 2, "bf16")
        self.compare_hooks("conv", 1, "bf16")

    def test_a_wrapped_hook_has_the_losses_and_weights_of_ddp_to_the_bit(self):
        self.compare_hooks("mlp", 1, "bf16", "fp16")
        self.compare_hooks("mlp", 1, "fp16", "bf16")

    def test_power_sgd_has_the_losses_and_weights_of_ddp_to_the_bit(self):
        # One and two columns are made orthogonal one by one, three by a QR decomposition; conv has gradients that are averaged.
        self.compare_hooks("mlp", 1, "power_sgd:1")
        self.compare_hooks("mlp", 1, "power_sgd:3")
        self.compare_hooks("conv", 1, "power_sgd:2")
        self.compare_hooks("mlp", 2, "power_sgd:1:cold")

    def test_batched_power_sgd_has_the_losses_and_weights_of_ddp_to_the_bit(self):
        # Of conv PyTorch's bucket has bias and weight of a layer in the order of their gradients, and so another square.
        self.compare_hooks("mlp", 1, "batched_power_sgd:2")
        self.compare_hooks("mlp", 2, "batched_power_sgd:1")

    def test_a_wrapped_power_sgd_has_the_losses_and_weights_of_ddp_to_the_bit(self):
        self.compare_hooks("mlp", 1, "power_sgd:1", "bf16")

    def test_mlp_under_bf16_autocast_has_the_losses_of_ddp(self):
        self.compare("mlp", "bf16", 1, BF16_TOLERANCE)


def write_uneven_case(path, ranks):
    """Batches with 0 to SAMPLES labels each; the rest is -100, which cross_entropy leaves out."""
    torch.manual_seed(5)
    tensors = {"model." + key: value for key, value in make_model("mlp").state_dict().items()}
    tensors["inputs"] = torch.randn(BATCHES, ranks, SAMPLES, 8)
    labels = torch.randint(0, 4, (BATCHES, ranks, SAMPLES))
    for batch in range(BATCHES):
        for rank in range(ranks):
            labels[batch, rank, (3 * batch + 5 * rank) % (SAMPLES + 1):] = -100
    tensors["labels"] = labels
    save_file(tensors, path)


def weights_of(lines):
    return [torch.frombuffer(bytearray.fromhex(line), dtype=torch.float32) for line in lines]


def recipe_worker(path, accumulation):
    """One rank of HF Accelerate, as its guide to gradient accumulation with samples of variable size shows it."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=accumulation, cpu=True)
    tensors = load_file(path)
    net = make_model("mlp")
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(net, sgd)
    rank = accelerator.process_index
    for first in range(0, BATCHES, accumulation):
        batches = range(first, first + accumulation)
        own = sum(int((tensors["labels"][batch][rank] != -100).sum()) for batch in batches)
        num_items = int(accelerator.gather(torch.tensor(own)).sum())
        for batch in batches:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(
                    model(tensors["inputs"][batch][rank]), tensors["labels"][batch][rank], reduction="sum")
                # DDP averages over processes, and backward() divides by the steps.
                accelerator.backward(loss * accumulation * accelerator.num_processes / num_items)
                optimizer.step()
                optimizer.zero_grad()
    for parameter in net.parameters():
        print(parameter.detach().numpy().tobytes().hex())
    leave_group()


def token_mean(path, ranks, accumulation):
    """The definition: one process, one batch of the labels of all ranks for each step."""
    tensors = load_file(path)
    net = make_model("mlp")
    net.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for first in range(0, BATCHES, accumulation):
        inputs = tensors["inputs"][first:first + accumulation].reshape(-1, 8)
        labels = tensors["labels"][first:first + accumulation].reshape(-1)
        torch.nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().reshape(-1) for parameter in net.parameters()]


class WeightedAccumulation(unittest.TestCase):
    # A gradient is a sum of at most 4 * 3 * SAMPLES terms of order 1 divided by their number, added up in parts: 72 roundings of
    # 2^-24. A rate of 0.1 with momentum 0.9 makes of them at most their own size in each of 12 steps, and a step passes earlier
    # differences on amplified by at most 2 in all.
    TOLERANCE = 72 * 2.0 ** -24 * 12 * 2

    def test_weights_of_labels_give_the_mean_over_all_labels(self):
        for ranks, accumulation in ((1, 3), (2, 1), (2, 3), (4, 2)):
            with tempfile.TemporaryDirectory() as folder, self.subTest(ranks=ranks, accumulation=accumulation):
                path = os.path.join(folder, "case.safetensors")
                write_uneven_case(path, ranks)
                expected = token_mean(path, ranks, accumulation)
                recipe = run_peer(ranks, "recipe", path, accumulation)
                accel = run_accel(ranks, "weighted", path, accumulation)
                for rank in range(ranks):
                    self.assertEqual(accel[rank], accel[0], f"rank {rank}")
                    found, peer = weights_of(accel[rank]), weights_of(recipe[rank])
                    self.assertEqual(len(found), len(expected))
                    for i, whole in enumerate(expected):
                        self.assertLessEqual(float((found[i] - whole).abs().max()), self.TOLERANCE)
                        self.assertLessEqual(float((found[i] - peer[i]).abs().max()), self.TOLERANCE)


def parsed(outputs):
    """(synced, rate, last_epoch, _step_count) of every batch, by rank."""
    rows = [[line.split() for line in lines] for lines in outputs]
    return [[(int(a), float.fromhex(b), int(c), int(d)) for a, b, c, d in lines] for lines in rows]


class Sequences(unittest.TestCase):
    def test_batches_sync_and_schedules_move_as_in_accelerate(self):
        for ranks in (1, 2):
            expected = parsed(run_peer(ranks, "accelerate", 1, 2, 3))
            found = [[] for _ in range(ranks)]
            for accumulation in (1, 2, 3):
                for rank, rows in enumerate(parsed(run_accel(ranks, "sequence", accumulation))):
                    found[rank] += rows
            self.assertGreater(len(expected[0]), 0)
            self.assertEqual(found, expected)


def rates_of(make, metric=False):
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.3, momentum=0.0)
    scheduler = make(optimizer)
    rates = []
    for step in range(31):
        rates.append(float(optimizer.param_groups[0]["lr"]).hex())
        if step < 30:
            optimizer.step()
            scheduler.step(1.0 / (1 + step // 4)) if metric else scheduler.step()
    return rates


def warmup_then(decay, warmup=5):
    return lambda step: step / warmup if step < warmup else decay(step)


def wsd(step):
    """Warm-up along a cosine, 8 stable steps, then 1 - sqrt down to a tenth."""
    if step < 5:
        return 0.5 * (1.0 - math.cos(math.pi * (step / 5))) * (1.0 - 0.1) + 0.1
    if step < 13:
        return 1.0
    return (1.0 - math.sqrt((step - 13) / 10)) * (1.0 - 0.1) + 0.1 if step < 23 else 0.1


def wsd_cosine(step):
    if step < 5:
        return step / 5
    if step < 13:
        return 1.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * ((step - 13) / 10)))) if step < 23 else 0.0


class Schedules(unittest.TestCase):
    """The rates of PyTorch's schedulers; for the schedules of transformers, its formulas on LambdaLR."""

    def test_rates_equal_pythons_to_the_bit(self):
        lr = torch.optim.lr_scheduler
        factors = {
            "constant_with_warmup": warmup_then(lambda step: 1.0),
            "linear": warmup_then(lambda step: max(0.0, (25 - step) / 20)),
            "cosine": warmup_then(
                lambda step: max(0.0, 0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * ((step - 5) / 20))))),
            "cosine_restarts": warmup_then(
                lambda step: 0.0 if step >= 25
                else 0.5 * (1.0 + math.cos(math.pi * ((3.0 * ((step - 5) / 20)) % 1.0)))),
            "polynomial": warmup_then(
                lambda step: 1e-4 / 0.3 if step > 25
                else ((0.3 - 1e-4) * (1 - (step - 5) / 20) ** 2.0 + 1e-4) / 0.3),
            "wsd": wsd,
            "wsd_cosine": wsd_cosine,
        }
        expected = {name: rates_of(lambda o, f=f: lr.LambdaLR(o, f)) for name, f in factors.items()}
        expected["step"] = rates_of(lambda o: lr.StepLR(o, 4, 0.5))
        expected["cosine_annealing"] = rates_of(lambda o: lr.CosineAnnealingLR(o, 7, 0.01))
        expected["one_cycle"] = rates_of(lambda o: lr.OneCycleLR(o, 0.5, total_steps=30))
        expected["one_cycle_three_phase_linear"] = rates_of(lambda o: lr.OneCycleLR(
            o, 0.5, total_steps=30, anneal_strategy="linear", three_phase=True))
        expected["plateau"] = rates_of(
            lambda o: lr.ReduceLROnPlateau(o, factor=0.5, patience=2, cooldown=1), metric=True)

        found = {}
        for line in run_accel(1, "schedules")[0]:
            name, *rates = line.split()
            found[name] = [float.fromhex(rate).hex() for rate in rates]

        self.assertEqual(sorted(found), sorted(expected))
        for name, rates in expected.items():
            self.assertEqual(found[name], rates, name)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 2 and sys.argv[1:3] == ["--worker", "ddp"]:
        ddp_worker(sys.argv[3], sys.argv[4], sys.argv[5], int(sys.argv[6]), *sys.argv[7:])
    elif len(sys.argv) > 2 and sys.argv[1:3] == ["--worker", "accelerate"]:
        accelerate_worker([int(steps) for steps in sys.argv[3:]])
    elif len(sys.argv) > 2 and sys.argv[1:3] == ["--worker", "recipe"]:
        recipe_worker(sys.argv[3], int(sys.argv[4]))
    else:
        unittest.main(verbosity=2)
