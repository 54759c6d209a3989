#!/usr/bin/env python3
"""Writes torchvision_tensors.txt: names and shapes of torchvision's own models, one tensor a line
as "model name shape", without num_batches_tracked, which is no tensor of ours."""

import os

import torch
import torchvision

MODELS = ("resnet18", "resnet50", "vgg11_bn", "vgg16")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "torchvision_tensors.txt"), "w", encoding="ascii") as file:
        for model in MODELS:
            with torch.device("meta"):
                tensors = getattr(torchvision.models, model)().state_dict()
            for name, tensor in tensors.items():
                if not name.endswith("num_batches_tracked"):
                    print(model, name, *tensor.shape, file=file)


if __name__ == "__main__":
    main()
