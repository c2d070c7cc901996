"""The works that the peers compute, and what every peer in Python needs: weights, tokens and the training loop."""
import argparse
import json
import os
import struct

import numpy as np
from safetensors.numpy import load_file

WORKS = {
    "A": {"vocab_size": 256, "d_model": 128, "n_layers": 4, "n_heads": 4, "d_ff": 352,
          "seq_len": 128, "batch_size": 16},
    "B": {"vocab_size": 4096, "d_model": 384, "n_layers": 6, "n_heads": 6, "d_ff": 1024,
          "seq_len": 256, "batch_size": 8},
    "smollm2-135m": {"preset": "smollm2-135m", "vocab_size": 49152, "seq_len": 512, "batch_size": 4},
}
# As one sequence, for adapters.py.
WORKS |= {f"{name}-512": {**WORKS[name], "seq_len": 512, "batch_size": 1} for name in "AB"}
# Mixtures of 8 experts, of which a token has 2: the multiplications of the dense works, but for the router's.
WORKS |= {f"{name}-moe": {**WORKS[name], "d_ff": 0, "moe": {"experts": 8, "top_k": 2, "d_ff": WORKS[name]["d_ff"] // 2,
                                                          "normalize": "true"}} for name in "AB"}
BATCHES = 64  # in a work's file of tokens

# Hyperparameters, constant over the run. AdamW's are also those of the parameters that Muon leaves to it.
ADAMW = {"lr": 0.001, "betas": (0.9, 0.95), "eps": 1e-8}
MUON = {"lr": 0.01, "momentum": 0.95}
JORDAN, MUON_STEPS = (3.4445, -4.7750, 2.0315), 5
WEIGHT_DECAY = 0.1  # of matrices
GRAD_CLIP = 1.0


def write_tokens(path, vocab_size, batch_size, seq_len):
    """Writes an llm.c shard of random tokens whose frequencies fall as those of words do."""
    frequency = 1 / np.arange(1, vocab_size + 1)
    count = BATCHES * batch_size * seq_len + 1
    tokens = np.random.default_rng(1).choice(vocab_size, count, p=frequency / frequency.sum()).astype(np.uint16)
    with open(path, "wb") as f:
        f.write(struct.pack("<3i", 20240520, 1, count).ljust(1024, b"\0") + tokens.tobytes())


class Job:
    """What a peer's command line names: the model, its first weights, the tokens, the optimizer."""

    def __init__(self, *flags):
        a = argparse.ArgumentParser()
        a.add_argument("model", help="folder of config.json and model.safetensors")
        a.add_argument("tokens", help="llm.c shard")
        a.add_argument("work", choices=WORKS)
        a.add_argument("optimizer", choices=["adamw", "muon"])
        a.add_argument("threads", type=int)
        for flag in flags:
            a.add_argument(flag, action="store_true")
        self.args = a.parse_args()
        work = WORKS[self.args.work]
        self.batch_size, self.seq_len = work["batch_size"], work["seq_len"]
        self.tokens = np.fromfile(self.args.tokens, np.uint16, offset=1024).astype(np.int64)

    def config(self):
        with open(os.path.join(self.args.model, "config.json")) as f:
            return json.load(f)

    def weights(self):
        """Name -> f32 array, without a head of its own if the embedding is the head."""
        return load_file(os.path.join(self.args.model, "model.safetensors"))

    def batch(self, step):
        """Inputs and targets [batch_size, seq_len]: windows in file order, from the start again after BATCHES steps."""
        n = self.batch_size * self.seq_len
        at, shape = step % BATCHES * n, (self.batch_size, self.seq_len)
        return self.tokens[at:at + n].reshape(shape), self.tokens[at + 1:at + n + 1].reshape(shape)


def train(job, step):
    """Trains until the process is ended. step(inputs, targets) returns a loss. Prints a line when it is known."""
    t = 0
    while True:
        loss = float(step(*job.batch(t)))
        t += 1
        print(json.dumps({"event": "step", "step": {"step": t, "loss": loss}}), flush=True)


def under_muon(name, shape):
    """Reports whether Muon updates a parameter: a matrix inside a layer."""
    return len(shape) == 2 and "layers." in name
