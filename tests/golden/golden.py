"""What every golden file here has in common: values that C++ tests draw again from their keys.

Twin of tests/golden/golden.h; a change here is a change there, and all files are made again.
"""

import numpy as np
import torch

from pytorch_twins import SYNTHETIC, Random

SEED = 2024
PROJECTIONS = 16
FILL, PROJECT = 101, 102  # second parts of keys


def name_key(name):
    """64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return value


def fill(model):
    """Draws every parameter from its name and shape, rounded to float.

    Convolutions as Kaiming's fan-out normal, linear weights U(+-1/sqrt(in)); with n standard
    normal batch norm weights 0.5 + 0.1 n and all biases 0.5 + 0.5 n: gentle enough that the deep
    ones' gradients are well conditioned, so that float arithmetic can be held to a tight bound.
    """
    for name, parameter in model.named_parameters():
        random = Random(SEED, FILL, name_key(name))
        shape, count = parameter.shape, parameter.numel()
        if len(shape) == 4:
            values = random.normal(count) * np.sqrt(2.0 / (shape[0] * shape[2] * shape[3]))
        elif len(shape) == 2:
            values = (2 * random.uniform(count) - 1) / np.sqrt(shape[1])
        else:
            values = 0.5 + (0.1 if name.endswith("weight") else 0.5) * random.normal(count)
        values = values.astype(np.float32).reshape(shape)
        parameter.data = torch.from_numpy(values).to(parameter.dtype)


def batch(index, count, size, classes):
    """Images of standard normal floats [count, 3, size, size] and labels [count]."""
    shape = (count, 3, size, size)
    images = Random(SEED, SYNTHETIC, index, 0).normal(int(np.prod(shape)))
    labels = Random(SEED, SYNTHETIC, index, 1).below(classes, count)
    images = images.astype(np.float32).reshape(shape)
    return torch.from_numpy(images), torch.from_numpy(labels)


def projections(name, values):
    """Dot products with PROJECTIONS vectors of +-1: bit p of draw i is the p-th one's sign at i.

    For such p, E (p.d)^2 = |d|^2: they pin a vector without holding it.
    """
    values = values.detach().double().reshape(-1).numpy()
    bits = Random(SEED, PROJECT, name_key(name)).next(values.size)
    result = []
    for p in range(PROJECTIONS):
        signs = ((bits >> np.uint64(p)) & np.uint64(1)).astype(np.float64) * 2 - 1
        result.append(float(signs @ values))
    return result


def line(kind, name, values):
    return " ".join([kind, name] + [f"{value:.15e}" for value in values])


def summary(kind, name, values):
    """One line: kind, name, L2 norm, projections."""
    norm = float(torch.linalg.vector_norm(values.detach().double()))
    return line(kind, name, [norm] + projections(name, values))


def write(path, made_by, lines):
    with open(path, "w", encoding="ascii") as out:
        out.write(f"# {made_by}, PyTorch {torch.__version__.split('+')[0]}, float64\n")
        out.write("\n".join(lines) + "\n")
