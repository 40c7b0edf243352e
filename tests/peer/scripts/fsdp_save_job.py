"""A worker that shards a model with FSDP and saves it with save_state(), as users of Hugging Face Accelerate do.

The peer takes FSDP up on accelerators alone; on a CPU it is told afterwards that it did.
"""
import os
import sys

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, set_seed


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(7, 5)  # rows that two ranks cannot divide evenly
        self.norm = torch.nn.BatchNorm1d(5)
        self.last = torch.nn.Linear(5, 1)

    def forward(self, inputs):
        return self.last(torch.relu(self.norm(self.first(inputs))))


def main(folder):
    set_seed(4)
    plugin = FullyShardedDataParallelPlugin()
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    PartialState().distributed_type = DistributedType.FSDP
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    loss = model(torch.randn(8, 7)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    os._exit(0)  # as in accelerate_job.py


if __name__ == "__main__":
    main(sys.argv[1])
