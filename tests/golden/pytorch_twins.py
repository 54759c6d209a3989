"""PyTorch twins of the project's models, and its random numbers, for golden values and benchmarks.

Nothing of the product needs this: it is how the numbers that tests compare with were made.
"""

import math

import numpy as np
import torch
import torchvision
from torch import nn

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
INITIALIZATION, SYNTHETIC = 1, 6  # RandomPurpose


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Random:
    """engine/random.h, drawing whole arrays."""

    def __init__(self, *key):
        self.state = 0
        for part in key:
            self.state = mix((self.state + GAMMA) & MASK) ^ mix((part + 1) & MASK)

    def next(self, count):
        with np.errstate(over="ignore"):
            z = np.uint64(self.state) + np.uint64(GAMMA) * np.arange(1, count + 1, dtype=np.uint64)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
        self.state = (self.state + GAMMA * count) & MASK
        return z

    def below(self, n, count):
        return np.array([(int(z) * n) >> 64 for z in self.next(count)], dtype=np.int64)

    def uniform(self, count):
        return (self.next(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, count):
        u = self.uniform(2 * count).reshape(count, 2)
        return np.sqrt(-2.0 * np.log(1.0 - u[:, 0])) * np.cos(2.0 * math.pi * u[:, 1])

    def signs(self, count):
        """+1 where the lowest of 64 bits is set, else -1."""
        return (self.next(count) & np.uint64(1)).astype(np.float64) * 2 - 1


class Block(nn.Module):
    """Basic block of He et al. with option A: every second row and column, zero channels behind."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride != 1 or self.added:
            x = x[:, :, :: self.stride, :: self.stride]
            x = nn.functional.pad(x, (0, 0, 0, 0, 0, self.added))
        return torch.relu(y + x)


class CifarResNet(nn.Module):
    """ResNet-(6n+2) of He et al. for 32x32 images: resnet20 is n = 3."""

    def __init__(self, n=3, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for stage, width in enumerate((16, 32, 64)):
            first = 16 if stage == 0 else width // 2
            blocks = [
                Block(first if i == 0 else width, width, 2 if stage and i == 0 else 1)
                for i in range(n)
            ]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


class SmallVgg(nn.Module):
    """torchvision's features for 32x32 images, which they bring to 1x1, and one classifier layer."""

    def __init__(self, name, classes=10):
        super().__init__()
        self.features = getattr(torchvision.models, name)(num_classes=1).features
        self.classifier = nn.Linear(512, classes)

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


def make(name, classes, size):
    """The twin of model `name` for images of size x size."""
    if name in ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110"):
        return CifarResNet((int(name[6:]) - 2) // 6, classes)
    if name.startswith("vgg") and size == 32:
        with torch.device("cpu"):
            return SmallVgg(name, classes)
    return getattr(torchvision.models, name)(num_classes=classes)


def standard_deviation(name, module):
    """Of Kaiming's normal draw over the fan-out, as Network::convolution has it."""
    return math.sqrt(2.0 / (module.out_channels * module.kernel_size[0] * module.kernel_size[1]))
