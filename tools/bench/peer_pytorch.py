#!/usr/bin/env python3
"""Training throughput of PyTorch on the CPU, the peer that tools/bench/step is compared with.

Times forward + backward + an SGD step with momentum and weight decay on synthetic data, one JSON
line a measurement. `--all` runs itself once per malloc setting and memory format.
"""

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time

# By default glibc hands freed activations back to the kernel and faults them in again at each
# step; with these it keeps them.
TUNED_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
# The same with huge pages, which PyTorch and glibc ask for where these are set.
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
MALLOCS = {"default": {}, "tuned": TUNED_MALLOC, "tuned_thp": TUNED_MALLOC | HUGE_PAGES}
SIZES = {"resnet20": (32, 10), "vgg16": (32, 10), "resnet50": (224, 1000)}  # image, classes


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SIZES), default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--memory-format", choices=("nchw", "channels_last"), default="nchw")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--seconds", type=float, default=10, help="time to measure, after warm-up")
    parser.add_argument("--steps", type=int, default=0, help="so many steps instead")
    parser.add_argument("--warm-up", type=int, default=3, help="steps before the first measured")
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--malloc", choices=sorted(MALLOCS), default="default")
    parser.add_argument("--all", action="store_true", help="every malloc setting and format")
    return parser.parse_args()


def peak_rss():
    """Bytes; of this program image alone, unlike getrusage's."""
    with open("/proc/self/status", encoding="ascii") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read())[1]) * 1024


def measure(options):
    import torch

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, os.path.join(here, "..", "..", "tests", "golden"))
    import pytorch_twins

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    size, classes = SIZES[options.model]
    layout = torch.channels_last if options.memory_format == "channels_last" else None
    model = pytorch_twins.make(options.model, classes, size)
    images = torch.randn(options.batch, 3, size, size)
    if layout is not None:
        model = model.to(memory_format=layout)
        images = images.to(memory_format=layout)
    labels = torch.randint(0, classes, (options.batch,))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    forward = torch.compile(model) if options.compile else model
    bf16 = options.precision == "bf16"

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = torch.nn.functional.cross_entropy(forward(images), labels)
        loss.backward()
        optimizer.step()

    for _ in range(options.warm_up):
        step()
    seconds = []
    end = time.perf_counter() + options.seconds
    while len(seconds) < options.steps if options.steps else time.perf_counter() < end:
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return {
        "program": "pytorch",
        "model": options.model,
        "batch": options.batch,
        "threads": options.threads,
        "memory_format": options.memory_format,
        "precision": options.precision,
        "malloc": options.malloc,
        "compile": options.compile,
        "images_per_s": round(options.batch / statistics.median(seconds), 2),
        "images_per_s_best": round(options.batch / min(seconds), 2),
        "n": len(seconds),
        "peak_rss_mib": round(peak_rss() / 2**20, 1),
        "torch": torch.__version__,
        "onednn": re.search(r"MKL-DNN v([\d.]+)", torch.__config__.show())[1],
    }


def rerun(options, malloc, memory_format):
    """Measures in a new process, since malloc reads its settings at its start."""
    command = [sys.executable, os.path.abspath(__file__)]
    for name in ("model", "batch", "threads", "precision", "seconds", "steps", "warm_up"):
        command += ["--" + name.replace("_", "-"), str(getattr(options, name))]
    command += ["--malloc", malloc, "--memory-format", memory_format]
    command += ["--compile"] if options.compile else []
    clean = {k: v for k, v in os.environ.items() if k not in TUNED_MALLOC | HUGE_PAGES}
    subprocess.run(command, env=clean | MALLOCS[malloc], check=True)


def main():
    options = arguments()
    if options.all:
        for malloc, memory_format in itertools.product(MALLOCS, ("nchw", "channels_last")):
            rerun(options, malloc, memory_format)
    elif any(os.environ.get(k) != v for k, v in MALLOCS[options.malloc].items()):
        rerun(options, options.malloc, options.memory_format)
    else:
        print(json.dumps(measure(options)), flush=True)


if __name__ == "__main__":
    main()
