"""The exchanges of replicas that train on their own, as docs/REPLICAS.md defines them: for llama_oracle.py."""
import math

import numpy as np
import torch

BLOCK = 256
PIECE = 1 << 14  # blocks that a program of gpupipe rounds at once
LAYER = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


def fragments_of(p):
    """The names of the parameters of each fragment, in order."""
    layers = 1 + max(int(k.split(".")[2]) for k in p if ".layers." in k)
    units = [["model.embed_tokens.weight"]]
    units += [[f"model.layers.{i}.{name}.weight" for name in LAYER] for i in range(layers)]
    return units + [[k for k in ("model.norm.weight", "lm_head.weight") if k in p]]


# ---------------------------------------------------------------- messages

def threefry(key, counter):
    """Threefry-2x32 with 20 rounds; counter may be an array and a word. The first words of the blocks, and the second."""
    u32 = lambda x: np.asarray(x, np.uint32)
    k0, k1 = u32(key[0]), u32(key[1])
    ks = [k0, k1, k0 ^ k1 ^ u32(0x1BD11BDA)]
    with np.errstate(over="ignore"):
        x, y = u32(counter[0]) + ks[0], u32(counter[1]) + ks[1]
        for group in range(5):
            for r in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
                x = x + y
                y = (y << u32(r) | y >> u32(32 - r)) ^ x
            x = x + ks[(group + 1) % 3]
            y = y + ks[(group + 2) % 3] + u32(group + 1)
    return x, y


def rounded(x, wire, seed, step, sender, piece):
    """What a message says of x, whose rows are blocks. The sender is a replica, or -1: the owner.

    The piece is that of a fragment: its number, and that of the fragment above the lowest 16 bits."""
    if wire == "f32":
        return x
    if wire == "bf16":
        return x.to(torch.float32).to(torch.bfloat16).to(x.dtype)
    bits = {"int8": 8, "int4": 4, "int2": 2}[wire]
    zero = 2 ** (bits - 1)
    s = x.pow(2).mean(-1, keepdim=True).sqrt() if bits == 2 else x.abs().amax(-1, keepdim=True) / (zero - 1)
    s = torch.where(s > 1e-30, s, 0.0)
    key = threefry(threefry((seed & 0xFFFFFFFF, seed >> 32), (step, 0x6F757465)), (sender + 1, piece))
    random = threefry(key, (np.arange(x.numel(), dtype=np.uint32), 0))[0] >> np.uint32(16)
    u = torch.tensor(random.astype(np.float64) / 65536, dtype=x.dtype).view_as(x)
    code = (torch.where(s > 0, x / torch.where(s > 0, s, 1.0), 0.0) + zero + u).clamp(1, 2 * zero - 0.5).floor()
    return (code - zero) * s


# ---------------------------------------------------------------- exchanges

class Exchanges:
    """The outer weights and everything that exchanges need."""

    def __init__(self, p, replicas, config, steps):
        pipeline = config["pipeline"]
        outer = {"lr": 0.7, "momentum": 0.6, "wire": "f32", "late": 0, "correction": "damped", **pipeline.get("outer", {})}
        self.replicas, self.period, self.last = replicas, pipeline["local_steps"], steps
        self.lr, self.momentum, self.wire = outer["lr"], outer["momentum"], outer["wire"]
        self.late, self.correction = outer["late"], outer["correction"]
        self.seed = config.get("init", {}).get("seed", 1)
        self.fragments = fragments_of(p)
        self.outer = {k: t.clone() for k, t in p.items()}
        self.base = {k: t.clone() for k, t in p.items()}
        self.m = {k: torch.zeros_like(t) for k, t in p.items()}
        self.residues = [{k: torch.zeros_like(t) for k, t in p.items()} for _ in replicas]
        self.flights = {}  # by fragment: the step at which it lands, and what each replica has sent

    def after(self, step):
        """Lands and sends what is due after a step, counted from 1."""
        for f, (lands, sent) in list(self.flights.items()):
            if lands <= step or step == self.last:
                self.land(f, sent)
        for f in range(len(self.fragments)):
            at = -(-(f + 1) * self.period // len(self.fragments))
            if step == self.last or (step - at) % self.period == 0:
                self.send(f, step)

    def message(self, tensors, fragment, step, sender):
        """What a message says of tensors: each is rounded in blocks of its own, with random numbers by position."""
        names = self.fragments[fragment]
        rows = [torch.nn.functional.pad(tensors[k].flatten(), (0, -tensors[k].numel() % BLOCK)).view(-1, BLOCK) for k in names]
        q = [rounded(x, self.wire, self.seed, step, sender, fragment << 16 | n) for n, x in enumerate(torch.cat(rows).split(PIECE))]
        parts = torch.cat(q).split([len(r) for r in rows])
        return {k: x.flatten()[:tensors[k].numel()].view_as(tensors[k]) for k, x in zip(names, parts)}

    def send(self, f, step):
        names, n = self.fragments[f], len(self.replicas)
        lands = min(step + self.late, self.last)
        total, messages = dict.fromkeys(names, 0.0), []
        for i, r in enumerate(self.replicas):
            x = {k: self.base[k] - r.p[k] + self.residues[i][k] for k in names}
            messages.append(self.message(x, f, step, i))
            for k in names:
                self.residues[i][k] = x[k] - messages[i][k]
                total[k] = total[k] + messages[i][k]
        ahead = 0.5 * self.late / self.period * (n - 1) / n * (1 - self.momentum) / self.lr
        if self.correction != "error_feedback":
            ahead = 0.0
        before, target = {k: self.base[k] for k in names}, {}
        for k in names:
            g = total[k] / n
            self.m[k] = self.momentum * self.m[k] + g
            move = self.lr * (g + self.momentum * self.m[k])
            self.outer[k] = self.outer[k] - move
            target[k] = self.outer[k] - ahead * move
        change = self.message({k: target[k] - before[k] for k in names}, f, step, -1)
        self.base.update({k: target[k] if self.wire == "f32" else before[k] + change[k] for k in names})
        if lands > step and self.correction == "eager":
            share = self.lr * (1 + self.momentum) / n
            for i, r in enumerate(self.replicas):
                r.p = {**r.p, **{k: before[k] - share * messages[i][k] for k in names}}
        sent = [{k: r.p[k] for k in names} for r in self.replicas]
        if lands == step:
            self.land(f, sent)
        else:
            self.flights[f] = lands, sent

    def land(self, f, sent):
        kept = 1 - 0.75 * self.late / self.period if self.correction == "damped" else 1.0
        for r, s in zip(self.replicas, sent):
            r.p = {**r.p, **{k: self.base[k] + kept * (r.p[k] - s[k]) for k in self.fragments[f]}}
        self.flights.pop(f, None)
