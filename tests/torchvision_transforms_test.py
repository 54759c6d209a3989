#!/usr/bin/env python3
"""torchvision's transforms on the draws that a C++ test made: torchvision_transforms_test.py FOLDER

FOLDER/cases.txt has a line a photograph: number, the crop's top, left, height, width, the uniform
numbers and the places that were drawn for it, the order of the colour changes, the four changes,
its path. <number>.crop, .train and .eval are ours, uint8 [224, 224, 3]. Exits with 77 where torch,
torchvision or Pillow is not installed.

Tolerances, in levels of 255: resized images differ by at most 1 anywhere (Pillow rounds between the
two passes); so do changed colours, and by at most 3 where the hue turns too (a level of difference
is stretched by what follows). Hue is compared with what torchvision does to tensors: to images of
Pillow it rounds hue and saturation to 8 bits on the way.
"""

import sys

try:
    import numpy
    import torch
    from PIL import Image
    from torchvision.transforms import CenterCrop, RandomResizedCrop, Resize
    from torchvision.transforms import functional as F
except ImportError as error:
    print(f"skipped: {error}: this needs torch, torchvision and Pillow")
    sys.exit(77)


class Draws:
    """Stands in for torch in RandomResizedCrop.get_params: gives the numbers that were drawn."""

    def __init__(self, uniforms, places):
        self.uniforms, self.places = iter(uniforms), iter(places)

    def __enter__(self):
        self.kept = torch.Tensor.uniform_, torch.randint
        torch.Tensor.uniform_ = lambda tensor, low, high: tensor.fill_(
            low + (high - low) * next(self.uniforms))
        torch.randint = lambda low, high, size: torch.tensor([next(self.places)])

    def __exit__(self, *_):
        torch.Tensor.uniform_, torch.randint = self.kept


def turn_hue(image, turn):
    return F.to_pil_image(F.adjust_hue(F.pil_to_tensor(image), turn))


def ours(folder, number, what):
    return numpy.fromfile(f"{folder}/{number}.{what}", numpy.uint8).reshape(224, 224, 3)


def main(folder):
    torch.set_default_dtype(torch.float64)  # draws as ours, in doubles
    worst = {}

    def compare(what, number, image, most, mean):
        difference = numpy.abs(numpy.asarray(image).astype(int) - ours(folder, number, what))
        kind = f"{what} (at most {most})"
        largest, average = worst.get(kind, (0, 0))
        worst[kind] = max(largest, difference.max()), max(average, difference.mean())
        assert difference.max() <= most, (what, number, difference.max())
        assert difference.mean() <= mean, (what, number, difference.mean())

    count = 0
    for line in open(f"{folder}/cases.txt"):
        fields = line.rstrip("\n").split(" ", 15)
        number, box = fields[0], tuple(int(field) for field in fields[1:5])
        uniforms = [float(field) for field in fields[5].split(",")]
        places = [int(field) for field in fields[6].split(",") if field != "-"]
        order = [int(field) for field in fields[7:11]]
        change = [float(field) for field in fields[11:15]]
        photo = Image.open(fields[15]).convert("RGB")
        with Draws(uniforms, places):
            theirs = RandomResizedCrop.get_params(photo, (0.08, 1.0), (3 / 4, 4 / 3))
        assert tuple(theirs) == box, (number, theirs, box)
        image = F.resized_crop(photo, *box, [224, 224], antialias=True)
        compare("crop", number, image, 1, 0.35)
        image = Image.fromarray(ours(folder, number, "crop"))
        functions = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, turn_hue)
        for what in order:
            if change[what] != (0 if what == 3 else 1):
                image = functions[what](image, change[what])
        turned = change[3] != 0
        compare("train", number, image, 3 if turned else 1, 0.5)
        compare("eval", number, CenterCrop(224)(Resize(256, antialias=True)(photo)), 1, 0.35)
        count += 1
    for what, (largest, average) in sorted(worst.items()):
        print(f"{what}: largest difference {largest}, largest mean {average:.3f} of 255")
    print(f"{count} photographs")
    assert count > 5


if __name__ == "__main__":
    main(sys.argv[1])
