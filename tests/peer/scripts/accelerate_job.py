"""A worker as users of Hugging Face Accelerate write it; it knows nothing of our accel."""
import json
import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(3)
    inputs = torch.randn(64, 8)
    targets = inputs.sum(dim=1, keepdim=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _ in range(10):
        for batch, target in loader:
            loss = torch.nn.functional.mse_loss(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    weights = accelerator.gather(accelerator.unwrap_model(model).weight.detach())
    is_equal = bool((weights == weights[0]).all())
    accelerator.wait_for_everyone()
    ranks = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
    result = json.dumps({"rank": accelerator.process_index, "world": accelerator.num_processes,
                         "type": str(accelerator.distributed_type), "ranks": ranks,
                         "first_loss": losses[0], "last_loss": losses[-1],
                         "equal_weights": is_equal})
    # One write: mpirun joins what ranks write, and print() without a buffer writes the end of the line apart.
    print(result + "\n", end="", flush=True)
    accelerator.end_training()
    # Gloo's threads may still let go of the tensors of the last gather. One that wants the interpreter's lock for it while
    # the interpreter shuts down ends the process by terminate().
    os._exit(0)


if __name__ == "__main__":
    main()
