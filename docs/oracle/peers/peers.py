#!/usr/bin/env python3
"""Compares the training speed of gpupipe's device cpu:0 with PyTorch's and JAX's: `make peers`.

    peers.py [--works A B A-moe B-moe smollm2-135m] [--optimizers adamw muon]
             [--peers NAME...] [--turns N] [--seconds S] [--threads N]

Every peer trains the same model from the same weights on the same tokens in a process of its own, without end, and
prints a line after each step. All but one are stopped by SIGSTOP. The peers take turns; in a turn one continues, the
time of its steps is measured by its lines, without the two first, and it is stopped again. All have the same cores and
the same number of threads. The losses of the first steps must be equal among the peers of a precision, else nothing is
comparable and the exit code is 1. PyTorch computes in bf16 by autocast, gpupipe by train.precision. "gpupipe, dense"
trains the dense model that has a mixture's multiplications, from weights of its own. Standard output is a table in
Markdown.
"""
import argparse
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import work

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "peers"
GPUPIPE = ROOT / "bin" / "gpupipe"
PEERS = {"PyTorch": ["torch_peer.py"], "PyTorch, compiled": ["torch_peer.py", "--compile"],
         "PyTorch, max-autotune": ["torch_peer.py", "--max-autotune"], "JAX": ["jax_peer.py"],
         "PyTorch, grouped_mm": ["torch_peer.py", "--grouped"], "gpupipe": None, "gpupipe, dense": None}
PEERS |= {f"{name}, bf16": command and [*command, "--bf16"] for name, command in PEERS.items() if name != "JAX"}
DENSE_PEERS = ["PyTorch", "PyTorch, compiled", "JAX", "gpupipe",
               "PyTorch, bf16", "PyTorch, compiled, bf16", "PyTorch, max-autotune, bf16", "gpupipe, bf16"]
MIXTURE_PEERS = ["PyTorch", "PyTorch, grouped_mm", "gpupipe", "gpupipe, dense"]
COMPARED_STEPS = 3
LOSS_TOLERANCES = {"f32": 1e-4, "bf16": 1e-3}  # relative, among the peers of a precision
FIRST_STEPS_TIMEOUT = 900.0  # seconds, compilation included
STEP_TIMEOUT = 300.0
LEAST_BUSY = 0.9  # cores busy for each thread, on an idle machine; JAX, which does not spin, has less there
HEADER = """\
| work | peer | tokens/s: min | median | max | to PyTorch | cores busy | peak memory | to PyTorch | first step |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the work's files

def settings(name, tokens, optimizer, **more):
    """gpupipe's flags for a work."""
    w = {k: v for k, v in work.WORKS[name].items() if k not in ("batch_size", "moe")}
    w |= {f"moe.{k}": v for k, v in work.WORKS[name].get("moe", {}).items()}
    adam, muon = work.ADAMW, work.MUON
    keys = {**{f"model.{k}": v for k, v in w.items()},
            "data.train": f"[{tokens}]", "data.val_fraction": 0, "data.shuffle": "false",
            "train.batch_size": work.WORKS[name]["batch_size"], "train.grad_clip": work.GRAD_CLIP,
            "train.eval_every": 0, "train.save_every": 0, "lr.schedule": "constant", "lr.warmup": 0,
            "optimizer.name": optimizer, "optimizer.weight_decay": work.WEIGHT_DECAY,
            "optimizer.lr": {"adamw": adam, "muon": muon}[optimizer]["lr"],
            "optimizer.adamw.betas": list(adam["betas"]), "optimizer.adamw.eps": adam["eps"]}
    if optimizer == "muon":
        keys |= {"optimizer.momentum": muon["momentum"], "optimizer.adamw.lr": adam["lr"]}
    return [f"--set={k}={v}" for k, v in (keys | more).items()]


def make_files(name):
    """Writes the first weights of a work, by gpupipe, and its tokens. Returns the folder of the weights."""
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    w = work.WORKS[name]
    work.write_tokens(folder / "tokens.bin", w["vocab_size"], w["batch_size"], w["seq_len"])
    start = fresh(folder / "start")
    more = {"train.steps": 0, "run.dir": start}
    run([GPUPIPE, "train", "--device", "cpu:0", *settings(name, folder / "tokens.bin", "adamw", **more)], folder / "start.log")
    return start / "checkpoints" / "step-0"


def fresh(folder):
    subprocess.run(["rm", "-rf", folder], check=True)
    return folder


def run(command, log):
    with open(log, "w") as f:
        if subprocess.run(command, stdout=f, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode:
            sys.exit(f"{log.read_text()}peers: {' '.join(map(str, command))} failed")


# ---------------------------------------------------------------- peers

class Peer:
    """A process that trains. It is stopped but in its turns."""

    def __init__(self, name, command, log, tokens):
        """tokens are those of a step."""
        self.name, self.log, self.tokens, self.rates, self.cores = name, log, tokens, [], []
        started = time.monotonic()
        with open(log, "w") as f:  # In a process group of its own it gets SIGHUP, then SIGCONT, if this process dies.
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=f, stdin=subprocess.DEVNULL,
                                            text=True, process_group=0)
        self.steps = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        first = [self.next(FIRST_STEPS_TIMEOUT) for _ in range(COMPARED_STEPS)]
        self.pause()
        self.first_step_seconds = first[0][0] - started
        self.losses = [loss for _, loss in first]

    def read(self):
        """Queues the time and the loss of each step."""
        for line in self.process.stdout:
            now, event = time.monotonic(), json.loads(line)
            if event["event"] == "step":
                self.steps.put((now, event["step"]["loss"]))
        self.steps.put(None)

    def next(self, timeout=STEP_TIMEOUT):
        try:
            step = self.steps.get(timeout=timeout)
        except queue.Empty:
            sys.exit(f"peers: {self.name} has made no step for {timeout:.0f} s; {self.log}")
        if step is None:
            sys.exit(f"{self.log.read_text()[-2000:]}\npeers: {self.name} has ended; {self.log}")
        return step

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def pause(self):
        self.signal(signal.SIGSTOP)
        time.sleep(0.05)  # for lines on their way
        while not self.steps.empty():
            self.next()

    def turn(self, seconds):
        """Measures tokens/s over the steps that begin within a time, at least one."""
        self.signal(signal.SIGCONT)
        self.next()  # was under way when the process was stopped
        begin, _ = self.next()
        end, steps, used = begin, 0, self.core_seconds()
        while end < begin + seconds:
            end, _ = self.next()
            steps += 1
        self.cores.append((self.core_seconds() - used) / (end - begin))
        self.pause()
        self.rates.append(steps * self.tokens / (end - begin))

    def core_seconds(self):
        """Processor time of the process so far, of its threads that have ended too."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self):
        """Largest resident memory of the process so far."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024

    def close(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait()


def precision_of(peer):
    return "bf16" if peer.endswith(", bf16") else "f32"


def start(peer, name, optimizer, weights, threads):
    folder, w = BUILD / name, work.WORKS[name]
    if PEERS[peer] is None:
        more = {"train.steps": 10_000_000, "run.dir": fresh(folder / f"{optimizer}-{peer.replace(', ', '-')}")}
        trained = name.removesuffix("-moe") if "dense" in peer else name
        if precision_of(peer) == "bf16":
            more["train.precision"] = "bf16"
        if trained == name:
            more["init.from"] = weights
        command = [GPUPIPE, "train", "--device", "cpu:0", "--json",
                   *settings(trained, folder / "tokens.bin", optimizer, **more)]
    else:
        script, *flags = PEERS[peer]
        command = [sys.executable, HERE / script, *flags, weights, folder / "tokens.bin", name, optimizer, str(threads)]
    log = folder / f"{optimizer}-{peer.replace(', ', '-')}.log".lower()
    return Peer(peer, [str(c) for c in command], log, w["batch_size"] * w["seq_len"])


# ---------------------------------------------------------------- measuring

def measure(name, optimizer, weights, o):
    """Lets the peers take turns on a work. Returns them with their rates, closed."""
    peers = []
    try:
        for peer in o.peers or (MIXTURE_PEERS if "moe" in work.WORKS[name] else DENSE_PEERS):
            say(f"{name}, {optimizer}: starting {peer}")
            peers.append(start(peer, name, optimizer, weights, o.threads))
            say(f"    losses {', '.join(f'{x:.6f}' for x in peers[-1].losses)}")
        for turn in range(o.turns):
            first = turn % len(peers)  # each peer comes after each other one
            for p in peers[first:] + peers[:first]:
                p.turn(o.seconds)
            rates = ", ".join(f"{p.name} {p.rates[-1]:,.0f}" for p in peers)
            say(f"{name}, {optimizer}: turn {turn + 1} of {o.turns}: {rates}")
        for p in peers:
            p.peak = p.peak_bytes()
    finally:
        for p in peers:
            p.close()
    return peers


def losses_differ(peers, precision):
    """Returns the largest relative difference between the losses of the same step of the peers of a precision."""
    same = [p.losses for p in peers if precision_of(p.name) == precision and "dense" not in p.name]
    return max(((max(losses) - min(losses)) / min(losses) for losses in zip(*same)), default=0)


def cpu_times():
    """Ticks of all cores since boot: stolen by other machines, in all."""
    fields = [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return fields[7], sum(fields)


def rows(name, optimizer, peers):
    """Lines of the table. Ratios are to the PyTorch, eager or compiled, of any precision, with the highest median."""
    pytorch = [p for p in peers if p.name.startswith("PyTorch")]
    best = max(pytorch, key=lambda p: statistics.median(p.rates), default=None)
    for p in peers:
        median, speed, memory = statistics.median(p.rates), "", ""
        if best:
            speed = f"{median / statistics.median(best.rates):.2f}"
            memory = f"{p.peak / best.peak:.2f}"
        cells = [f"{name}, {optimizer}", p.name, *(f"{f(p.rates):,.0f}" for f in (min, statistics.median, max)), speed,
                 f"{statistics.median(p.cores):.2f}", f"{p.peak / 2**20:,.0f} MiB", memory,
                 f"{p.first_step_seconds:.1f} s"]
        yield f"| {' | '.join(cells)} |"


def main():
    cores = sorted(os.sched_getaffinity(0))
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--works", nargs="+", choices=work.WORKS, default=["A", "B"])
    a.add_argument("--optimizers", nargs="+", choices=["adamw", "muon"], default=["adamw", "muon"])
    a.add_argument("--peers", nargs="+", choices=PEERS, help="default: those of the work")
    a.add_argument("--turns", type=int, default=5)
    a.add_argument("--seconds", type=float, default=5, help="of a turn, at least")
    a.add_argument("--threads", type=int, default=len(cores), help="of each peer, each on a core")
    o = a.parse_args()
    if not 1 <= o.threads <= len(cores):
        a.error(f"--threads: {o.threads}, expected 1 to {len(cores)}, the cores that this process may use")
    os.sched_setaffinity(0, cores[:o.threads])  # gpupipe has as many threads as cores; so has JAX
    os.environ |= {k: str(o.threads) for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")}
    os.environ |= {"JAX_PLATFORMS": "cpu", "TORCHINDUCTOR_CACHE_DIR": str(BUILD / "inductor")}

    table, disturbed, failed, before = [], [], False, cpu_times()
    for name in o.works:
        weights = make_files(name)
        for optimizer in o.optimizers:
            if optimizer == "muon" and "moe" in work.WORKS[name]:
                continue  # the peers' Muon has matrices alone
            peers = measure(name, optimizer, weights, o)
            table += rows(name, optimizer, peers)
            disturbed += [f"{p.name} ({name}, {optimizer})" for p in peers
                          if p.name != "JAX" and statistics.median(p.cores) < LEAST_BUSY * o.threads]
            for precision, most in LOSS_TOLERANCES.items():
                difference = losses_differ(peers, precision)
                failed = failed or difference > most
                say(f"{name}, {optimizer}, {precision}: losses of the first {COMPARED_STEPS} steps differ by "
                    f"{difference:.1e}, at most {most:.0e}")
    stolen, ticks = (y - x for x, y in zip(before, cpu_times()))
    print(HEADER)
    print("\n".join(table))
    print(f"\n{o.turns} turns of {o.seconds:g} s, {o.threads} threads each. "
          "Ratios are to the fastest PyTorch. "
          f"Time stolen by other machines: {100 * stolen / ticks:.1f} %.")
    if disturbed:
        print(f"\n**Not valid: other work kept cores from {', '.join(disturbed)}.**")
    if failed:
        sys.exit("peers: the losses differ, so the peers have not computed the same")


if __name__ == "__main__":
    main()
