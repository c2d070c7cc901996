#!/usr/bin/env python3
"""Compares training on one software GPU, Mesa's lavapipe, with programs in Rust and JavaScript: `make peers-lavapipe`.

    adapters.py [--works A B A-512 B-512] [--peers NAME...] [--turns N] [--seconds S]

All train in f32 from the same weights on the same tokens with AdamW, by turns, as in peers.py. The losses of the first
three steps must be equal, else the exit code is 1. meganeura's optimizer is Adam, so its first loss alone must be equal.
Its graphs have one sequence: works that end in -512 are one sequence of 512 tokens. A peer that fails is named, with its
message. Rust, Node.js and Mesa's lavapipe must be installed; crates and packages of npm are fetched.
"""
import argparse
import functools
import json
import math
import os
import shutil
import statistics
import sys

import peers
import work

HERE = peers.HERE / "adapters"
BUILD = peers.BUILD / "adapters"
DRIVER = "/usr/share/vulkan/icd.d/lvp_icd.json"
SCRIPTS = {"jax-js": "jax-js.mjs", "TensorFlow.js": "tfjs.mjs"}
PEERS = ["gpupipe, vulkan:0", "gpupipe, webgpu:0", "meganeura", "burn", *SCRIPTS]
LOSS_TOLERANCE = 1e-4  # relative, of each step that is compared
COMPARED_STEPS = {"meganeura": 1}  # default: those of peers.py


def write_job(name, weights):
    """Writes what the other peers read: job.json, weights.f32 and tokens.u16."""
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    w = work.WORKS[name]
    job = {"model": json.loads((weights / "config.json").read_text()), "batch_size": w["batch_size"], "seq_len": w["seq_len"],
           "adamw": work.ADAMW, "weight_decay": work.WEIGHT_DECAY, "grad_clip": work.GRAD_CLIP, "tensors": []}
    at = 0
    with open(folder / "weights.f32", "wb") as f:
        for key, x in work.load_file(str(weights / "model.safetensors")).items():
            job["tensors"].append({"name": key, "shape": list(x.shape), "offset": at})
            f.write(x.astype("<f4").tobytes())
            at += x.size
    (folder / "tokens.u16").write_bytes((peers.BUILD / name / "tokens.bin").read_bytes()[1024:])
    (folder / "job.json").write_text(json.dumps(job))
    return folder


def built(peer):
    """The program of a peer in Rust, built beside its lock file outside of the sources."""
    folder = BUILD / peer
    shutil.copytree(HERE / peer, folder, dirs_exist_ok=True)
    peers.run(["cargo", "build", "--quiet", "--release", "--manifest-path", folder / "Cargo.toml"], BUILD / f"{peer}.log")
    return folder / "target" / "release" / f"{peer}-peer"


@functools.cache
def scripts():
    """The folder of the peers in JavaScript, beside the packages that they import."""
    folder = BUILD / "js"
    shutil.copytree(HERE / "js", folder, dirs_exist_ok=True)
    peers.run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder], BUILD / "npm.log")
    return folder


def start(peer, name, weights):
    folder, w = BUILD / name, work.WORKS[name]
    if peer.startswith("gpupipe"):
        device = peer.split(", ")[1]
        more = {"train.steps": 10_000_000, "run.dir": peers.fresh(folder / device), "init.from": weights}
        # Kernels are timed for 2 % of the time since the first step, in which this process does nothing but in its turns.
        command = [peers.GPUPIPE, "train", "--device", device, "--json", "--no-tune",
                   *peers.settings(name, peers.BUILD / name / "tokens.bin", "adamw", **more)]
    elif peer in SCRIPTS:
        command = ["node", scripts() / SCRIPTS[peer], folder]
    else:
        command = [built(peer), folder]
    return peers.Peer(peer, [str(c) for c in command], folder / f"{peer}.log".replace(", ", "-"), w["batch_size"] * w["seq_len"])


def measure(name, o):
    """Lets the peers that start take turns. Returns them, closed, and the messages of the others by name."""
    weights, running, failed = peers.make_files(name), [], {}
    write_job(name, weights)
    try:
        for peer in o.peers:
            peers.say(f"{name}: starting {peer}")
            try:
                running.append(checked(start(peer, name, weights)))
                peers.say(f"    losses {', '.join(f'{x:.6f}' for x in running[-1].losses)}")
            except SystemExit as e:
                failed[peer] = last_line(str(e))
                peers.say(f"    {failed[peer]}")
        for turn in range(o.turns if running else 0):
            first = turn % len(running)
            for p in running[first:] + running[:first]:
                p.turn(o.seconds)
            peers.say(f"{name}: turn {turn + 1} of {o.turns}: {', '.join(f'{p.name} {p.rates[-1]:,.0f}' for p in running)}")
    finally:
        for p in running:
            p.close()
    return running, failed


def checked(peer):
    """Returns a peer whose losses are numbers. JSON in JavaScript has null for those that are not."""
    if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in peer.losses):
        peer.close()
        sys.exit(f"error: the losses of the first steps are {peer.losses}, expected numbers")
    return peer


def loss_difference(peer, reference):
    """Returns the largest relative difference between the losses of the steps in which both peers are compared."""
    steps = min(COMPARED_STEPS.get(p.name, peers.COMPARED_STEPS) for p in (peer, reference))
    return max(abs(x / y - 1) for x, y in list(zip(peer.losses, reference.losses))[:steps])


def last_line(message):
    """The last line of a log that says something, without peers.py's own."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith("peers:")]
    told = [line for line in lines if "rror" in line or "panicked" in line or "found" in line]
    return (told or lines or [message])[-1][:300]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--works", nargs="+", choices=work.WORKS, default=["A", "A-512", "B-512"])
    a.add_argument("--peers", nargs="+", choices=PEERS, default=[p for p in PEERS if p != "burn"],
                   help="all but burn, whose first step takes a quarter of an hour")
    a.add_argument("--turns", type=int, default=5)
    a.add_argument("--seconds", type=float, default=5, help="of a turn, at least")
    o = a.parse_args()
    os.environ |= {"VK_ICD_FILENAMES": DRIVER, "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", "/tmp"),
                   "CUBECL_AUTOTUNE_LEVEL": "minimal"}  # burn's first step takes minutes even so: lavapipe compiles slowly
    BUILD.mkdir(parents=True, exist_ok=True)
    print("| work | peer | tokens/s: min | median | max | to gpupipe | losses of the first steps |\n"
          "| --- | --- | --- | --- | --- | --- | --- |")
    differ = False
    for name in o.works:
        running, failed = measure(name, o)
        best = max((statistics.median(p.rates) for p in running if p.name.startswith("gpupipe")), default=None)
        for p in running:
            median = statistics.median(p.rates)
            ratio = f"{median / best:.2f}" if best else ""
            difference = loss_difference(p, running[0])
            differ = differ or not difference <= LOSS_TOLERANCE
            peers.say(f"{name}: losses of {p.name} differ by {difference:.1e}, at most {LOSS_TOLERANCE:.0e}")
            rates = " | ".join(f"{x:,.0f}" for x in (min(p.rates), median, max(p.rates)))
            print(f"| {name} | {p.name} | {rates} | {ratio} | {', '.join(f'{x:.5f}' for x in p.losses)} |")
        for peer, message in failed.items():
            print(f"| {name} | {peer} | fails: {message} | | | | |")
    if differ:
        sys.exit("adapters: the losses differ, so the peers have not computed the same")


if __name__ == "__main__":
    main()
