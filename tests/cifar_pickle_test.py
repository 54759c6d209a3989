#!/usr/bin/env python3
"""CIFAR's pickles through Python: cifar_pickle_test.py FOLDER

Compares FOLDER/py, which tools/convert wrote, with the binary version in FOLDER/bin, and writes it
as FOLDER/python/<way>/ in every protocol of pickle, for tools/convert to read. Exits with 77 where
numpy is not installed.
"""

import os
import pickle
import sys

try:
    import numpy
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def main(folder):
    for name in ("data_batch_1", "test_batch"):
        records = numpy.fromfile(f"{folder}/bin/{name}.bin", numpy.uint8).reshape(-1, 3073)
        with open(f"{folder}/py/{name}", "rb") as file:
            batch = pickle.load(file, encoding="bytes")
        assert set(batch) == {b"batch_label", b"labels", b"data", b"filenames"}, set(batch)
        assert batch[b"labels"] == records[:, 0].tolist()
        assert batch[b"data"].dtype == numpy.uint8
        assert (batch[b"data"] == records[:, 1:]).all()
        assert len(batch[b"filenames"]) == len(records)
        for protocol in range(1, pickle.HIGHEST_PROTOCOL + 1):
            to = f"{folder}/python/protocol{protocol}"
            os.makedirs(to, exist_ok=True)
            with open(f"{to}/{name}", "wb") as file:
                pickle.dump({"labels": records[:, 0].tolist(),
                             "data": numpy.ascontiguousarray(records[:, 1:]),
                             "filenames": [f"{i}.png" for i in range(len(records))]},
                            file, protocol)
            with open(f"{to}/batches.meta", "wb") as file:
                pickle.dump({"label_names": list("abcdefghij"), "num_vis": 3072}, file, protocol)


if __name__ == "__main__":
    main(sys.argv[1])
