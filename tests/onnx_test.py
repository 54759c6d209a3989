#!/usr/bin/env python3
"""Exported models against our own logits: onnx_test.py FOLDER

FOLDER has cases.json: a list of {"name", "shape", "type", "classes", "count", "tolerance"}, and for
each case <name>.onnx, <name>.images (raw, of that type, [count, *shape]) and <name>.logits (raw
float32). Each model must pass onnx.checker and give those logits in onnxruntime, in one batch and in
small ones. Exits with 77 where a package is missing.
"""

import json
import os
import sys

try:
    import numpy
    import onnx
    import onnxruntime
except ImportError as error:
    print(f"skipped: {error}: checking exports needs onnx, onnxruntime and numpy")
    sys.exit(77)


def check(folder, case):
    path = os.path.join(folder, case["name"])
    model = onnx.load(path + ".onnx")
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(path + ".onnx", options, ["CPUExecutionProvider"])
    (images_info,), (logits_info,) = session.get_inputs(), session.get_outputs()
    assert images_info.name == "images" and images_info.shape == ["batch", *case["shape"]]
    assert images_info.type == f"tensor({case['type'].replace('float32', 'float')})"
    assert logits_info.name == "logits" and logits_info.shape == ["batch", case["classes"]]

    images = numpy.fromfile(path + ".images", case["type"]).reshape(-1, *case["shape"])
    logits = numpy.fromfile(path + ".logits", "float32").reshape(-1, case["classes"])
    assert len(images) == len(logits) == case["count"]
    whole = session.run(None, {"images": images})[0]
    parts = [session.run(None, {"images": images[a:b]})[0] for a, b in ((0, 1), (1, 8))]
    error = float(numpy.abs(whole - logits).max())
    error_of_parts = float(numpy.abs(numpy.concatenate(parts) - logits[:8]).max())
    size = float(numpy.abs(logits).max())
    folded = not any(node.op_type == "BatchNormalization" for node in model.graph.node)
    same = int((whole.argmax(1) == logits.argmax(1)).sum())
    print(
        f"{case['name']}: {len(images)} images, largest logit {size:.3f}, largest difference "
        f"{error:.2e}, in small batches {error_of_parts:.2e}, same class {same}"
    )
    assert size > 0.05 and numpy.std(logits, axis=0).min() > 1e-3, "logits that say nothing"
    assert max(error, error_of_parts) <= case["tolerance"], "other logits than ours"
    if case["folded"]:
        assert folded, "a batch norm is left"


def main():
    folder = sys.argv[1]
    with open(os.path.join(folder, "cases.json"), encoding="utf-8") as file:
        cases = json.load(file)
    assert cases
    for case in cases:
        check(folder, case)


if __name__ == "__main__":
    main()
