#!/usr/bin/env python3
"""Makes gradients_<model>.txt: one forward and backward pass in float64 of each model below.

Lines: `loss <model> <mean loss>`, `gradients <tensor> <norm> <projections>` for every parameter
and `statistics <tensor> <norm> <projections>` for every running statistic after the pass.
With --errors prints instead how far PyTorch's own float and bf16 gradients are from those.
"""

import os
import sys

import torch

import golden
import pytorch_twins

# Model: batch, image size, classes.
CASES = {
    "resnet20": (8, 32, 10),
    "resnet18": (8, 64, 100),
    "resnet50": (16, 64, 100),
    "vgg11_bn": (8, 32, 10),
    "vgg16": (8, 32, 10),
}


def step(name, dtype, autocast=False):
    """The model after one backward pass, and its loss."""
    count, size, classes = CASES[name]
    model = pytorch_twins.make(name, classes, size).to(dtype)
    golden.fill(model)
    images, labels = golden.batch(0, count, size, classes)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = torch.nn.functional.cross_entropy(model(images.to(dtype)), labels)
    loss.backward()
    return model, loss.item()


def file_lines(name):
    model, loss = step(name, torch.float64)
    lines = [golden.line("loss", name, [loss])]
    for tensor, parameter in model.named_parameters():
        lines.append(golden.summary("gradients", tensor, parameter.grad))
    for tensor, buffer in model.named_buffers():
        if "running" in tensor:
            lines.append(golden.summary("statistics", tensor, buffer))
    return lines


def print_errors(name):
    exact, loss = step(name, torch.float64)
    for label, other_loss, other in (
        ("fp32", *reversed(step(name, torch.float32))),
        ("bf16", *reversed(step(name, torch.float32, autocast=True))),
    ):
        squares, total, worst = 0.0, 0.0, (0.0, "")
        for (tensor, a), (_, b) in zip(exact.named_parameters(), other.named_parameters()):
            error = float(torch.linalg.vector_norm(a.grad - b.grad.double()))
            norm = float(torch.linalg.vector_norm(a.grad))
            squares, total = squares + error**2, total + norm**2
            worst = max(worst, (error / norm, f"{tensor} of norm {norm:.2e}"))
        print(f"{name} {label}: loss {loss:.6f} off by {other_loss - loss:.1e}, gradient of norm")
        print(f"    {total**0.5:.3f} by {(squares / total) ** 0.5:.2e}, worst tensor {worst}")


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    for name in CASES:
        if "--errors" in sys.argv:
            print_errors(name)
        else:
            path = os.path.join(folder, f"gradients_{name}.txt")
            golden.write(path, "make_gradients.py", file_lines(name))


if __name__ == "__main__":
    main()
