#!/usr/bin/env python3
"""Reads a run's event files as TensorBoard does and prints them: tensorboard_test.py FOLDER

Prints JSON: {"scalars": {tag: [[step, value], ...]}, "hparams": {name: value}, "ended": bool}.
Exits with 77 where TensorBoard is not installed.
"""

import json
import sys

try:
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.plugins.hparams import metadata
except ImportError as error:
    print(f"skipped: {error}: reading event files needs tensorboard")
    sys.exit(77)


def main():
    accumulator = event_accumulator.EventAccumulator(
        sys.argv[1], size_guidance={event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0}
    )
    accumulator.Reload()
    scalars = {
        tag: [[event.step, event.value] for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }
    contents = accumulator.PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(contents["_hparams_/session_start_info"])
    hparams = {
        key: getattr(value, value.WhichOneof("kind")) for key, value in start.hparams.items()
    }
    ended = "_hparams_/session_end_info" in contents
    print(json.dumps({"scalars": scalars, "hparams": hparams, "ended": ended}))


if __name__ == "__main__":
    main()
