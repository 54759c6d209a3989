#!/usr/bin/env python3
"""Makes resnet20_sgd.txt: 20 steps of momentum SGD with weight decay on ResNet-20 in float64.

Lines: `loss <step> <mean loss>`, then `weights` and `statistics` `<tensor> <norm> <projections>`
after the last step. The batches are few and come again, so that the loss falls.
"""

import os
import sys

import torch

import golden
import pytorch_twins

STEPS, BATCH, BATCHES, SIZE, CLASSES = 20, 8, 4, 32, 10
RATE, MOMENTUM, DECAY = 0.01, 0.9, 5e-3


def run(nudge=0.0):
    """The lines of the file; `nudge` perturbs the first weights, to see how errors grow."""
    torch.manual_seed(1)
    model = pytorch_twins.make("resnet20", CLASSES, SIZE).double()
    golden.fill(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + nudge * torch.randn_like(parameter))
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM, weight_decay=DECAY)
    lines = []
    for step in range(STEPS):
        images, labels = golden.batch(step % BATCHES, BATCH, SIZE, CLASSES)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images.double()), labels)
        loss.backward()
        optimizer.step()
        lines.append(golden.line("loss", str(step), [loss.item()]))
    for name, parameter in model.named_parameters():
        lines.append(golden.summary("weights", name, parameter))
    for name, buffer in model.named_buffers():
        if "running" in name:
            lines.append(golden.summary("statistics", name, buffer))
    return lines


def main():
    if len(sys.argv) > 1:
        for first, other in zip(run()[:STEPS], run(float(sys.argv[1]))[:STEPS]):
            print(first, float(other.split()[2]) - float(first.split()[2]))
        return
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "resnet20_sgd.txt")
    golden.write(path, "make_resnet20_sgd.py", run())


if __name__ == "__main__":
    main()
