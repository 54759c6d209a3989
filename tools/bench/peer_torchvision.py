#!/usr/bin/env python3
"""Images/s of one thread with torchvision and Pillow: peer_torchvision.py FOLDER SECONDS

Decode, RandomResizedCrop to 224, flip, to a tensor, normalise, as torchvision's own training
reference does; the files of FOLDER/train are in memory. Prints the speed, or nothing where a package
is missing. Pillow is Pillow-SIMD where that is installed in its place.
"""

import io
import pathlib
import sys
import time

try:
    import torch
    from PIL import Image
    from torchvision import transforms
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(0)

torch.set_num_threads(1)
transform = transforms.Compose([
    transforms.RandomResizedCrop(224),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
    transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
])


def sample(file):
    return transform(Image.open(io.BytesIO(file)).convert("RGB"))


def main(folder, seconds):
    files = [path.read_bytes() for path in sorted(pathlib.Path(folder, "train").rglob("*"))
             if path.is_file()]
    for file in files[:20]:
        sample(file)
    start, done = time.thread_time(), 0
    while time.thread_time() - start < seconds:
        sample(files[done % len(files)])
        done += 1
    print(done / (time.thread_time() - start))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
