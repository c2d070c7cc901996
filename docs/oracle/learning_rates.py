#!/usr/bin/env python3
"""Trains every learning rate of a `gpupipe study` grid in PyTorch, for where gpupipe itself would take hours.

    learning_rates.py STUDY.yaml --init DIR [--root DIR] [--only LABEL] [--json OUT]

STUDY.yaml is a grid without delay, such as examples/learning-rates/study.yaml. DIR holds the initial weights: the folder
checkpoints/step-0 of a run with train.steps=0. Data paths are relative to --root. The model and the optimizers are those of
llama_oracle.py, in f32; windows are shuffled by NumPy, so losses differ from gpupipe's by the order of the data alone.
Prints one line per run: label, learning rate, loss on the held-out text after the last step.
"""
import argparse
import json
import math
import os

import numpy as np
import torch
import yaml

import llama_oracle as oracle


def put(config, key, value):
    *sections, last = key.split(".")
    for s in sections:
        config = config.setdefault(s, {})
    config[last] = value


def runs(path):
    """Yields label, learning rate and config of every run."""
    grid = oracle.numbers(yaml.safe_load(open(path)))
    for label, o in grid["optimizers"].items():
        for lr in o["lrs"]:
            config = oracle.numbers(yaml.safe_load(open(os.path.join(os.path.dirname(path), grid["base"]))))
            settings = {**grid["set"], "optimizer.name": label, **o.get("set", {}), "optimizer.lr": lr}
            settings.update({k: lr * times for k, times in o.get("times_lr", {}).items()})
            for key, value in settings.items():
                put(config, key, value)
            yield label, lr, config


def split(config, root):
    """Windows of seq_len + 1 tokens: the training ones, shuffled, and the held-out ones."""
    data, length = config["data"], config["model"]["seq_len"]
    tokens = torch.cat([oracle.load_tokens(os.path.join(root, f)) for f in data["train"]])
    held_out = int(len(tokens) * data["val_fraction"])
    train, val = (t.unfold(0, length + 1, length) for t in (tokens[:-held_out], tokens[-held_out:]))
    return train[np.random.default_rng(data["seed"]).permutation(len(train))], val


def validation_loss(p, c, windows, size=32):
    with torch.no_grad():
        losses = [oracle.loss_of(p, c, w[:, :-1], w[:, 1:]) * len(w) for w in windows.split(size)]
    return float(sum(losses)) / len(windows)


def train(config, init, root):
    c = json.load(open(os.path.join(init, "config.json")))
    p = {k: v.float() for k, v in oracle.load_safetensors(os.path.join(init, "model.safetensors")).items()}
    optimizers = {k: oracle.optimizer_for(k, v, config["optimizer"]) for k, v in p.items()}
    windows, held_out = split(config, root)
    loop, size = config["train"], config["train"]["batch_size"]
    for t in range(loop["steps"]):
        w = windows[t * size:(t + 1) * size]
        leaves = {k: v.requires_grad_() for k, v in p.items()}
        loss = oracle.loss_of(leaves, c, w[:, :-1], w[:, 1:])
        grads = torch.autograd.grad(loss, list(leaves.values()))
        norm = math.sqrt(sum(float(g.pow(2).sum()) for g in grads))
        if not math.isfinite(norm):
            return math.inf
        clip = min(1.0, loop["grad_clip"] / (norm + 1e-6))
        factor = oracle.lr_factor(t, loop["steps"], config["lr"])
        with torch.no_grad():
            p = {k: optimizers[k].step(v, g * clip, t, factor) for (k, v), g in zip(leaves.items(), grads)}
    return validation_loss(p, c, held_out)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("study")
    a.add_argument("--init", required=True)
    a.add_argument("--root", default=".")
    a.add_argument("--only", help="a label: the runs of one optimizer")
    a.add_argument("--json", help="a file to append results to, one object a line")
    a = a.parse_args()
    for label, lr, config in runs(a.study):
        if a.only in (None, label):
            loss = train(config, a.init, a.root)
            print(f"{label:<18} {lr:<8g} {loss:.4f}", flush=True)
            if a.json:
                with open(a.json, "a") as f:
                    f.write(json.dumps({"label": label, "lr": lr, "val_loss": loss}) + "\n")


if __name__ == "__main__":
    main()
