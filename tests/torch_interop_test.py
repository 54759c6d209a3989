#!/usr/bin/env python3
"""Strict loading both ways between this program and PyTorch: torch_interop_test.py TRAINER MODEL...

For each model a PyTorch twin's state_dict is written as a safetensors file, the program starts
from it (model.init), trains a little and writes checkpoints. Then
 - its first checkpoint must hold the twin's values bit for bit,
 - PyTorch must take its last one with strict=True and reach the loss and accuracy that the
   program logged for it.
Exits with 77 where PyTorch or torchvision is not installed.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    import torchvision
except ImportError as error:
    print(f"skipped: {error}: strict loading needs PyTorch and torchvision")
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "golden"))
import pytorch_twins

TRAIN_IMAGES, TEST_IMAGES = 16, 24
MEAN, STD = 0.4, 0.3
DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), file.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        tensor = torch.frombuffer(bytearray(data[first:end]), dtype=DTYPES[entry["dtype"]])
        tensors[name] = tensor.reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    header, pieces, offset = {}, [], 0
    names = {dtype: name for name, dtype in DTYPES.items()}
    for name, tensor in tensors.items():
        piece = tensor.contiguous().numpy().tobytes()
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(piece)],
        }
        offset += len(piece)
        pieces.append(piece)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(pieces))


def write_idx(folder, split, count, generator):
    """Random 28x28 images as IDX files; returns them as the program sees them, and labels."""
    pixels = torch.randint(0, 256, (count, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, 10, (count,), generator=generator, dtype=torch.uint8)
    for name, values in (("images-idx3", pixels), ("labels-idx1", labels)):
        with open(os.path.join(folder, f"{split}-{name}-ubyte"), "wb") as file:
            file.write(bytes([0, 0, 8, values.dim()]))
            file.write(struct.pack(f">{values.dim()}I", *values.shape) + values.numpy().tobytes())
    images = torch.nn.functional.pad(pixels, (2, 2, 2, 2)).unsqueeze(1).expand(-1, 3, -1, -1)
    return (images.double() / 255 - MEAN) / STD, labels.long()


def twin(model, classes=10):
    """A twin with random running statistics, so that a mix-up of theirs would show."""
    result = pytorch_twins.make(model, classes, 32)
    for name, buffer in result.named_buffers():
        if buffer.is_floating_point():
            noise = torch.rand_like(buffer)
            buffer.copy_(0.5 + noise if name.endswith("var") else 0.2 * (noise - 0.5))
    return result


def config(model, folder):
    return f"""
model: {{name: {model}, num_classes: 10, init: {folder}/init.safetensors}}
data: {{dataset: mnist, dir: {folder}, batch_size: 8, mean: [{MEAN}], std: [{STD}]}}
train: {{epochs: 1}}
optim: {{lr: 0.001}}
checkpoint: {{dir: {folder}/{model}, every_steps: 1}}
log: {{dir: {folder}/{model}}}
"""


def check_model(trainer, model, folder, images, labels):
    first = twin(model).state_dict()
    write_safetensors(f"{folder}/init.safetensors", first)
    with open(f"{folder}/{model}.yaml", "w", encoding="utf-8") as file:
        file.write(config(model, folder))
    run = subprocess.run(
        [trainer, "--config", f"{folder}/{model}.yaml"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr

    started = read_safetensors(f"{folder}/{model}/step-0/model.safetensors")
    for name, tensor in first.items():
        assert started[name].shape == tensor.shape, f"{name} has another shape"
        assert name.endswith("num_batches_tracked") or torch.equal(started[name], tensor), name

    trained = read_safetensors(f"{folder}/{model}/latest/model.safetensors")
    assert any(not torch.equal(trained[name], first[name]) for name in first), "nothing was learnt"
    other = pytorch_twins.make(model, 10, 32)
    other.load_state_dict(trained, strict=True)
    with torch.no_grad():
        logits = other.eval().double()(images)
    loss = float(torch.nn.functional.cross_entropy(logits, labels))
    top1 = float((logits.argmax(1) == labels).double().mean())
    with open(f"{folder}/{model}/metrics.jsonl", encoding="utf-8") as file:
        logged = [line for line in map(json.loads, file) if line.get("type") == "eval"][-1]
    print(f"{model}: PyTorch's loss {loss:.6f}, top1 {top1}; logged {logged}")
    assert abs(logged["loss"] - loss) < 1e-4 * max(1, loss), "another loss than the one logged"
    assert abs(logged["top1"] - top1) <= 1.001 / TEST_IMAGES, "another accuracy than logged"


def main():
    trainer = os.path.abspath(sys.argv[1])
    print(f"PyTorch {torch.__version__}, torchvision {torchvision.__version__}")
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(2)
    with tempfile.TemporaryDirectory() as folder:
        write_idx(folder, "train", TRAIN_IMAGES, generator)
        images, labels = write_idx(folder, "t10k", TEST_IMAGES, generator)
        for model in sys.argv[2:]:
            check_model(trainer, model, folder, images, labels)


if __name__ == "__main__":
    main()
