"""What the checks of models share: a folder of data, gpupipe's commands, and their comparison with transformers."""
import json
import os
import shutil
import struct
import subprocess
import sys

import numpy as np
import torch
import transformers

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import families  # noqa: E402
import llama_oracle as oracle  # noqa: E402

GPUPIPE = os.environ.get("GPUPIPE", "gpupipe")
SCRATCH = os.environ.get("SCRATCH", "/tmp")
WINDOWS, PROMPT, NEW = families.WINDOWS, families.PROMPT, families.NEW
LETTER = 0x4E00  # the first of the characters that stand for tokens

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Failure(Exception):
    """A difference between gpupipe and transformers."""


def gpupipe(*arguments, check=True):
    """Runs a command of gpupipe and returns its standard output, or without check its exit status and standard error."""
    done = subprocess.run([GPUPIPE, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    if not check:
        return done.returncode, done.stderr
    if done.returncode != 0:
        raise Failure(f"gpupipe {' '.join(map(str, arguments))}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def write_data(folder, vocab, seq, seed):
    """Writes windows.bin, tokens.bin and tokenizer.json, and returns the tokens of the latter shard. Token i is a character."""
    rng = np.random.default_rng(seed)
    count = families.STEPS * families.ROWS * seq + 1
    ids = (rng.zipf(1.3, count) * 7 % vocab).astype(np.uint16)
    ids[3] = vocab - 1
    os.makedirs(folder, exist_ok=True)
    for name, n in (("tokens.bin", count), ("windows.bin", WINDOWS * seq + 1)):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(struct.pack("<256i", 20240520, 1, n, *[0] * 253) + ids[:n].tobytes())
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "decoder": {"type": "Fuse"},
                   "model": {"type": "BPE", "unk_token": None, "vocab": {chr(LETTER + i): i for i in range(vocab)}, "merges": []}}, f)
    return oracle.load_tokens(os.path.join(folder, "tokens.bin"))


def losses_of(model, tokens, seq):
    with torch.no_grad():
        return families.loss_of(model, *oracle.batch(tokens, 0, WINDOWS, seq)).tolist()


def our_loss(folder, data, seq):
    """gpupipe's mean loss of the windows."""
    return json.loads(gpupipe("eval", folder, "--tokenizer", data, "--data", f"{data}/windows.bin", "--seq-len", seq, "--batch-size", WINDOWS,
                              "--device", "cpu:0", "--json"))["loss"]


def our_tokens(folder, data, tokens, count=NEW):
    """gpupipe's greedy tokens after the first ones of the text."""
    prompt = "".join(chr(LETTER + i) for i in tokens[:PROMPT].tolist())
    text = json.loads(gpupipe("generate", folder, "--tokenizer", data, "--prompt", prompt, "--temperature", 0, "--tokens", count, "--device",
                              "cpu:0", "--json"))["text"]
    return [ord(c) - LETTER for c in text[len(prompt):]]


RUN = """
model: {{seq_len: {seq}}}
init: {{from: {folder}}}
data: {{train: {data}/tokens.bin, val_fraction: 0, tokenizer: {data}, shuffle: false}}
train: {{steps: 20, batch_size: 4, microbatches: {microbatches}, grad_clip: 1.0, eval_every: 0, save_every: 0, precision: f32}}
optimizer: {{name: {name}, lr: {lr}, weight_decay: 0.1, adamw: {{lr: 0.003, betas: [0.9, 0.95], eps: 1.0e-8}}}}
lr: {{schedule: cosine, warmup: 4, min_ratio: 0.1}}
pipeline: {{devices: cpu:0}}
run: {{dir: {run}}}
"""


def our_training(folder, data, seq, options, microbatches=2):
    """gpupipe's losses of the training steps."""
    run = os.path.join(data, "run-" + options["name"])
    with open(run + ".yaml", "w") as f:
        f.write(RUN.format(seq=seq, folder=folder, data=data, microbatches=microbatches, name=options["name"], lr=options["lr"], run=run))
    shutil.rmtree(run, ignore_errors=True)
    gpupipe("train", run + ".yaml", "--no-tune")
    records = (json.loads(line) for line in open(os.path.join(run, "metrics.jsonl")))
    return [r["loss"] for r in records if "loss" in r]


def relative(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))
