#!/usr/bin/env python3
"""torchvision's own models and ours, through files: torchvision_test.py make|check FOLDER MODEL

make: a model of torchvision with drawn weights and statistics, its state dict as
<MODEL>.safetensors, two images and its logits (raw float32: <MODEL>.images, <MODEL>.logits).
check: torchvision takes <MODEL>.ours.safetensors with strict=True and gives <MODEL>.ours.logits for
those images. Exits with 77 where PyTorch or torchvision is not installed.
"""

import os
import sys

try:
    import torch
    import torchvision
except ImportError as error:
    print(f"skipped: {error}: this needs PyTorch and torchvision")
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_interop_test import read_safetensors, write_safetensors

COUNT, CLASSES, SIZE = 2, 1000, 224


def values(path, shape):
    with open(path, "rb") as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.float32).reshape(shape)


def logits(model, images):
    with torch.no_grad():
        return model.eval()(images)


def make(path, name):
    torch.manual_seed(5)
    model = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES)
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None  # the running statistics become those of the next batch
            torch.nn.init.uniform_(layer.weight, 0.5, 1)
            torch.nn.init.uniform_(layer.bias, -0.2, 0.2)
        elif isinstance(layer, torch.nn.Linear):
            torch.nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
    images = torch.randn(COUNT, 3, SIZE, SIZE)
    with torch.no_grad():
        model.train()(images)
    write_safetensors(path + ".safetensors", model.state_dict())
    for what, tensor in (("images", images), ("logits", logits(model, images))):
        with open(f"{path}.{what}", "wb") as file:
            file.write(tensor.numpy().tobytes())


def check(path, name):
    model = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES)
    model.load_state_dict(read_safetensors(path + ".ours.safetensors"), strict=True)
    theirs = logits(model, values(path + ".images", (COUNT, 3, SIZE, SIZE)))
    ours = values(path + ".ours.logits", (COUNT, CLASSES))
    error = float((ours - theirs).abs().max())
    largest = float(theirs.abs().max())
    print(f"{name}: largest logit {largest:.3f}, largest difference {error:.2e}")
    assert largest > 0.1, "logits that say nothing"
    assert error <= 1e-4 * max(1, largest), "other logits than torchvision's"


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](os.path.join(*sys.argv[2:4]), sys.argv[3])
