#!/usr/bin/env python3
"""Reads a run's event files with TensorBoard and compares every scalar with the run's own logs.

The run has two stages, is stopped by its number of steps and resumed with more, so that it has two event files.
"""
import glob
import json
import math
import os
import subprocess
import sys

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SCRATCH = os.environ["SCRATCH"]
RUN = os.path.join(SCRATCH, "run")


def train(*flags):
    subprocess.run([os.environ["GPUPIPE"], "train", "--no-tune", *flags], check=True, stdout=subprocess.DEVNULL, cwd=SCRATCH)


def logged():
    """The values by tag and step, as float32. The time is not a scalar."""
    values = {}
    for name in ("metrics.jsonl", "system.jsonl"):
        with open(os.path.join(RUN, name)) as f:
            for record in map(json.loads, f):
                step = record.pop("step")
                for tag, x in record.items():
                    if tag != "time":
                        values.setdefault(tag, {})[step] = np.float32(float(x))
    return values


def main():
    text = os.path.join(SCRATCH, "text.txt")
    with open(text, "w") as f:
        f.write("In the beginning the cat sat on the mat, and a dog ran to the cat.\n" * 400)
    train("--set", f"run.dir={RUN}", "--set", f"data={{train: [{text}], tokenizer: bytes, val_fraction: 0.1}}",
          "--set", "model={d_model: 32, n_layers: 2, n_heads: 2, n_kv_heads: 2, d_ff: 64, seq_len: 32}",
          "--set", "train={steps: 20, batch_size: 8, microbatches: 8, eval_every: 5, eval_batches: 1}", "--set", "pipeline={stages: 2, schedule: 2bw}")
    train(RUN, "--resume", "--set", "train.steps=30")
    files = glob.glob(os.path.join(RUN, "tensorboard", "*"))
    if len(files) != 2:
        sys.exit(f"found {len(files)} event files, expected one of each start")
    events = EventAccumulator(os.path.join(RUN, "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    want, got = logged(), events.Tags()["scalars"]
    if set(want) != set(got):
        sys.exit(f"TensorBoard has the tags {sorted(got)}, the logs {sorted(want)}")
    scalars = 0
    for tag, values in want.items():
        read = {e.step: np.float32(e.value) for e in events.Scalars(tag)}
        same = read.keys() == values.keys() and all(read[s] == x or math.isnan(read[s]) and math.isnan(x) for s, x in values.items())
        if not same:
            sys.exit(f"{tag}: TensorBoard has {read}, the log {values}")
        scalars += len(read)
    if sorted(want["loss"]) != list(range(1, 31)):
        sys.exit(f"the losses are of steps {sorted(want['loss'])}, expected 1 to 30")
    print(f"{scalars} scalars under {len(want)} tags in 2 files are those of the logs")


if __name__ == "__main__":
    main()
