#!/usr/bin/env python3
"""Training throughput of PyTorch on a GPU, the peer that tools/bench/step --device cuda has.

Times forward + backward + an SGD step with momentum and weight decay on synthetic data that lie on
the GPU, in channels_last, each way that PyTorch has of making it fast: as it is, as a CUDA graph,
through torch.compile. One JSON line a way; the best of them is what counts.
"""

import argparse
import json
import os
import statistics
import sys
import time

SIZES = {"resnet20": (32, 10), "vgg16": (32, 10), "resnet50": (224, 1000)}  # image, classes


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SIZES), default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--tf32", action="store_true", help="fp32 on tensor cores")
    parser.add_argument("--seconds", type=float, default=5, help="time to measure, after warm-up")
    parser.add_argument("--ways", default="graph,eager,compile", help="which, in that order")
    return parser.parse_args()


class Training:
    """A model with its data, and one step of it."""

    def __init__(self, torch, twins, options, way):
        size, classes = SIZES[options.model]
        torch.manual_seed(1)
        model = twins.make(options.model, classes, size).cuda()
        self.model = model.to(memory_format=torch.channels_last)
        images = torch.randn(options.batch, 3, size, size, device="cuda")
        self.images = images.contiguous(memory_format=torch.channels_last)
        self.labels = torch.randint(0, classes, (options.batch,), device="cuda")
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4, fused=True
        )
        self.forward = torch.compile(self.model) if way == "compile" else self.model
        self.torch, self.bf16 = torch, options.precision == "bf16"

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with self.torch.autocast(
            "cuda", self.torch.bfloat16, enabled=self.bf16, cache_enabled=False
        ):
            logits = self.forward(self.images)
            loss = self.torch.nn.functional.cross_entropy(logits, self.labels)
        loss.backward()
        self.optimizer.step()

    def recorded(self):
        """step() as a replay of a graph."""
        stream = self.torch.cuda.Stream()
        stream.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        self.torch.cuda.current_stream().wait_stream(stream)
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            self.step()
        return graph.replay


def measure(torch, twins, options, way):
    training = Training(torch, twins, options, way)
    step = training.recorded() if way == "graph" else training.step
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    seconds, end = [], time.perf_counter() + options.seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(10):
            step()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / 10)
    return {
        "program": "pytorch",
        "way": way,
        "model": options.model,
        "batch": options.batch,
        "precision": options.precision,
        "tf32": options.tf32,
        "images_per_s": round(options.batch / statistics.median(seconds), 1),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
    }


def main():
    options = arguments()
    import torch

    if not torch.cuda.is_available():
        sys.exit("peer_pytorch_gpu: this PyTorch sees no GPU")
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, os.path.join(here, "..", "..", "tests", "golden"))
    import pytorch_twins

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = options.tf32
    for way in options.ways.split(","):
        try:
            print(json.dumps(measure(torch, pytorch_twins, options, way)), flush=True)
        except Exception as error:  # one way that does not work here leaves the others
            print(f"peer_pytorch_gpu: {way}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
