#!/usr/bin/env python3
"""Replays a gpupipe training run in PyTorch: the development-time oracle.

    llama_oracle.py RUN.yaml [--root DIR] [--dtype f64|f32] [--json OUT]
                    [--grads OUT.safetensors] [--weights OUT.safetensors] [--steps N]

RUN.yaml is a gpupipe config with init.from, model.seq_len, optimizer.name, the learning rates and data.shuffle: false,
best the config.yaml of a run folder. Other keys have gpupipe's defaults. Its paths are relative to --root. A delay of
the update, pipeline.stale_microbatches, error feedback and replicas that train on their own are replayed. The model, the optimizers and the file formats
are written out by hand, from the published definitions, so that nothing here shares code or a library's habits with
what it checks.
"""
import argparse
import json
import math
import os
import struct

import numpy as np
import torch
import yaml

import replicas_oracle

# ---------------------------------------------------------------- safetensors

NUMPY_OF = {"F64": np.float64, "F32": np.float32}


def load_safetensors(path):
    """name -> f64 tensor. BF16 is the upper half of an f32."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(n)), f.read()
    out = {}
    for name, h in header.items():
        if name == "__metadata__":
            continue
        raw = data[h["data_offsets"][0]:h["data_offsets"][1]]
        if h["dtype"] == "BF16":
            a = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            a = np.frombuffer(raw, NUMPY_OF[h["dtype"]])
        out[name] = torch.tensor(a.astype(np.float64).reshape(h["shape"]))
    return out


def save_safetensors(path, tensors, dtype="F32"):
    """Tensors in name order, stored as F32 or, cut to their upper halves, as BF16."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, t in sorted(tensors.items()):
        a = t.detach().numpy().astype(np.float32)
        if dtype == "BF16":
            a = (a.view(np.uint32) >> 16).astype(np.uint16)
        blob = a.tobytes()
        header[name] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + b"".join(blobs))


# ---------------------------------------------------------------- data

def load_tokens(path):
    """An llm.c shard's uint16 tokens, or any other file's bytes."""
    raw = open(path, "rb").read()
    if not path.endswith(".bin"):
        return torch.tensor(np.frombuffer(raw, np.uint8).astype(np.int64))
    magic, version, count = struct.unpack_from("<3i", raw)
    if (magic, version) != (20240520, 1) or len(raw) != 1024 + 2 * count:
        raise SystemExit(f"{path}: not an llm.c shard: magic {magic}, version {version}, {count} tokens")
    return torch.tensor(np.frombuffer(raw, np.uint16, offset=1024).astype(np.int64))


def batch(tokens, step, B, T):
    """Windows step*B ... step*B+B-1 in file order; targets are the inputs shifted by one."""
    rows = [tokens[k * T:k * T + T + 1] for k in range(step * B, step * B + B)]
    if len(rows[-1]) != T + 1:
        raise SystemExit(f"{len(tokens)} tokens are too few for step {step} of {B} windows of {T}")
    w = torch.stack(rows)
    return w[:, :-1], w[:, 1:]


# ---------------------------------------------------------------- model

def rms_norm(x, weight, eps):
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x, theta):
    """x [B, heads, T, head_dim]; the halves rotate, as in Hugging Face's Llama."""
    T, D = x.shape[-2:]
    freq = theta ** (-torch.arange(0, D, 2, dtype=x.dtype) / D)
    angle = torch.arange(T, dtype=x.dtype)[:, None] * freq[None, :]
    angle = torch.cat([angle, angle], -1)
    a, b = x[..., :D // 2], x[..., D // 2:]
    return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()


def attention(x, p, prefix, c):
    B, T, _ = x.shape
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]

    def project(name, n):
        return (x @ p[f"{prefix}.{name}_proj.weight"].T).view(B, T, n, -1).transpose(1, 2)

    q = rope(project("q", heads), c["rope_theta"])
    k = rope(project("k", kv), c["rope_theta"]).repeat_interleave(heads // kv, 1)
    v = project("v", kv).repeat_interleave(heads // kv, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    y = (weights @ v).transpose(1, 2).reshape(B, T, -1)
    return y @ p[f"{prefix}.o_proj.weight"].T


def mlp(x, p, prefix):
    gate = x @ p[f"{prefix}.gate_proj.weight"].T
    up = x @ p[f"{prefix}.up_proj.weight"].T
    return (gate * torch.sigmoid(gate) * up) @ p[f"{prefix}.down_proj.weight"].T


def loss_of(p, c, inputs, targets):
    """Mean negative log-likelihood in nats per target token."""
    eps = c["rms_norm_eps"]
    x = p["model.embed_tokens.weight"][inputs]
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        x = x + attention(rms_norm(x, p[f"{layer}.input_layernorm.weight"], eps), p, f"{layer}.self_attn", c)
        x = x + mlp(rms_norm(x, p[f"{layer}.post_attention_layernorm.weight"], eps), p, f"{layer}.mlp")
    x = rms_norm(x, p["model.norm.weight"], eps)
    head = "model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"
    logp = torch.log_softmax(x @ p[head].T, -1)
    return -logp.gather(-1, targets[..., None]).mean()


# ---------------------------------------------------------------- optimizers

JORDAN = [(3.4445, -4.7750, 2.0315)] * 5
# Polar Express, five steps; each but the last divided by (s, s^3, s^5), s = 1.01, for safety.
POLAR_EXPRESS = [(a / 1.01, b / 1.01 ** 3, c / 1.01 ** 5) for a, b, c in (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
)] + [(2.300652019954817, -1.6689039845747493, 0.4188073119525673)]


def orthogonalize(g, coefficients):
    tall = g.shape[0] > g.shape[1]
    x = g.T if tall else g
    x = x / (x.norm() + 1e-7)
    for a, b, c in coefficients:
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if tall else x


class Optimizer:
    def update(self, p, g, t, factor):
        """What weight decay leaves of the weights p, as a factor, and the update u."""
        raise NotImplementedError

    def step(self, p, g, t, factor):
        kept, u = self.update(p, g, t, factor)
        return p * kept - u


class AdamW(Optimizer):
    def __init__(self, lr, betas, eps, weight_decay):
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.m = self.v = 0.0

    def update(self, p, g, t, factor):
        lr, (b1, b2) = self.lr * factor, self.betas
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g * g
        mhat, vhat = self.m / (1 - b1 ** (t + 1)), self.v / (1 - b2 ** (t + 1))
        return 1 - lr * self.weight_decay, lr * mhat / (vhat.sqrt() + self.eps)


class SGD(Optimizer):
    def __init__(self, lr, momentum, nesterov, weight_decay):
        self.lr, self.momentum, self.nesterov, self.weight_decay = lr, momentum, nesterov, weight_decay
        self.m = 0.0

    def update(self, p, g, t, factor):
        lr = self.lr * factor
        self.m = self.momentum * self.m + g
        u = g + self.momentum * self.m if self.nesterov else self.m
        return 1 - lr * self.weight_decay, lr * u


class Muon(Optimizer):
    def __init__(self, lr, momentum, nesterov, weight_decay, coefficients, scale):
        self.lr, self.momentum, self.nesterov, self.weight_decay = lr, momentum, nesterov, weight_decay
        self.coefficients, self.scale = coefficients, scale
        self.m = 0.0

    def orthogonalized(self, n):
        return orthogonalize(n, self.coefficients)

    def update(self, p, g, t, factor):
        lr, beta = self.lr * factor, self.momentum
        self.m = beta * self.m + (1 - beta) * g
        n = (1 - beta) * g + beta * self.m if self.nesterov else self.m
        rows, cols = p.shape
        scale = {"spectral": math.sqrt(max(1.0, rows / cols)),
                 "match_rms_adamw": 0.2 * math.sqrt(max(rows, cols))}[self.scale]
        return 1 - lr * self.weight_decay, lr * scale * self.orthogonalized(n)


class NorMuon(Muon):
    """Rows divided by the root of their running mean square; the norm stays."""
    beta2, v = 0.95, 0.0

    def orthogonalized(self, n):
        o = super().orthogonalized(n)
        self.v = self.beta2 * self.v + (1 - self.beta2) * o.pow(2).mean(-1, keepdim=True)
        rows = o / (self.v.sqrt() + 1e-10)
        return rows * o.norm() / (rows.norm() + 1e-10)


class Lion(Optimizer):
    def __init__(self, lr, betas, weight_decay):
        self.lr, self.betas, self.weight_decay, self.m = lr, betas, weight_decay, 0.0

    def update(self, p, g, t, factor):
        lr, (b1, b2) = self.lr * factor, self.betas
        u = torch.sign(b1 * self.m + (1 - b1) * g)
        self.m = b2 * self.m + (1 - b2) * g
        return 1 - lr * self.weight_decay, lr * u


class Adan(Optimizer):
    def __init__(self, lr, betas, eps, weight_decay):
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.m = self.d = self.n = 0.0

    def update(self, p, g, t, factor):
        lr, (b1, b2, b3) = self.lr * factor, self.betas
        change = g - (g if t == 0 else self.last)
        self.m = b1 * self.m + (1 - b1) * g
        self.d = b2 * self.d + (1 - b2) * change
        self.n = b3 * self.n + (1 - b3) * (g + b2 * change) ** 2
        mhat, dhat, nhat = (x / (1 - b ** (t + 1)) for x, b in ((self.m, b1), (self.d, b2), (self.n, b3)))
        self.last = g
        return 1 - lr * self.weight_decay, lr * (mhat + b2 * dhat) / (nhat.sqrt() + self.eps)


class MARS(AdamW):
    gamma, last = 0.025, 0.0

    def update(self, p, g, t, factor):
        c = g + self.gamma * self.betas[0] / (1 - self.betas[0]) * (g - self.last)
        self.last = g
        return super().update(p, c / max(1.0, float(c.norm())), t, factor)


class SOAP(Optimizer):
    """AdamW in the eigenbasis of Shampoo's preconditioners; a side longer than max_dim has none."""

    def __init__(self, lr, betas, eps, weight_decay, shampoo_beta, frequency, max_dim):
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.shampoo_beta, self.frequency, self.max_dim = shampoo_beta, frequency, max_dim
        self.m = self.v = 0.0
        self.gg, self.q = [0.0, 0.0], [None, None]

    def rotate(self, x, back=False):
        left, right = self.q
        if left is not None:
            x = (left if back else left.T) @ x
        if right is not None:
            x = x @ (right.T if back else right)
        return x

    def accumulate(self, g):
        self.gg = [self.shampoo_beta * a + (1 - self.shampoo_beta) * b for a, b in zip(self.gg, (g @ g.T, g.T @ g))]

    def update(self, p, g, t, factor):
        lr, (b1, b2) = self.lr * factor, self.betas
        if t == 0:
            self.accumulate(g)
            for i in (0, 1):
                if p.shape[i] <= self.max_dim:
                    self.q[i] = torch.linalg.eigh(self.gg[i])[1].flip(1)
            return 1.0, 0.0
        projected = self.rotate(g)
        self.m = b1 * self.m + (1 - b1) * projected
        self.v = b2 * self.v + (1 - b2) * projected ** 2
        u = math.sqrt(1 - b2 ** t) / (1 - b1 ** t) * self.rotate(self.m / (self.v.sqrt() + self.eps), back=True)
        m = self.rotate(self.m, back=True)
        self.accumulate(g)
        if t % self.frequency == 0:
            for i, q in enumerate(self.q):
                if q is not None:
                    order = (q.T @ self.gg[i] @ q).diag().argsort(descending=True)
                    self.v = self.v.index_select(i, order)
                    self.q[i] = torch.linalg.qr(self.gg[i] @ q[:, order])[0]
        self.m = self.rotate(m)
        return 1 - lr * self.weight_decay, lr * u


def optimizer_for(name, p, o):
    """Muon, NorMuon and SOAP take the layers' matrices, MARS all matrices, Lion and Adan everything; the rest is AdamW's."""
    adam = {"betas": [0.9, 0.95], "eps": 1e-8, **o.get("adamw", {})}
    matrix, kind, eps = p.dim() == 2, o["name"], o.get("eps", 1e-8)
    decay = o.get("weight_decay", 0.1) if matrix else 0.0
    if kind in ("muon", "normuon") and matrix and ".layers." in name:
        coefficients = {"jordan": JORDAN, "polar_express": POLAR_EXPRESS}[o.get("newton_schulz", "jordan")]
        return {"muon": Muon, "normuon": NorMuon}[kind](o["lr"], o.get("momentum", 0.95), o.get("nesterov", True),
                                                       decay, coefficients, o.get("scale", "spectral"))
    if kind == "sgd":
        return SGD(o["lr"], o.get("momentum", 0.95), o.get("nesterov", True), decay)
    if kind == "lion":
        return Lion(o["lr"], o.get("betas", [0.9, 0.99]), decay)
    if kind == "adan":
        return Adan(o["lr"], o.get("betas", [0.98, 0.92, 0.99]), eps, decay)
    if kind == "mars" and matrix:
        return MARS(o["lr"], o.get("betas", [0.95, 0.99]), eps, decay)
    if kind == "soap":
        betas, s = o.get("betas", [0.95, 0.95]), o.get("soap", {})
        limit = s.get("max_precond_dim", 4096)
        if matrix and ".layers." in name and min(p.shape) <= limit:
            return SOAP(o["lr"], betas, eps, decay, s.get("shampoo_beta", betas[1]),
                        s.get("precondition_frequency", 10), limit)
        return AdamW(o["lr"], betas, eps, decay)
    return AdamW(o["lr"] if kind == "adamw" else adam["lr"], adam["betas"], adam["eps"], decay)


def lr_factor(step, steps, lr):
    warmup, low = lr.get("warmup", 50), lr.get("min_ratio", 0.1)
    if step < warmup:
        return (step + 1) / warmup
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


# ---------------------------------------------------------------- the run

def stale_microbatches(config):
    """How many microbatches of each batch and replica lack the update of the batch before, and of how many."""
    pipeline = config.get("pipeline", {})
    m = config["train"].get("microbatches", 1) // pipeline.get("replicas", 1)
    stages = pipeline.get("stages", 1)
    stale = pipeline.get("stale_microbatches", "auto")
    if pipeline.get("delay", int(pipeline.get("schedule") == "2bw")) == 0:
        return 0, m
    if stale == "all" or stale == "auto" and stages == 1:
        return m, m
    depth = pipeline.get("depth", "auto")
    return stages - 1 + (0 if depth == "auto" else depth) if stale == "auto" else stale, m


def gradients_of(p, c, inputs, targets, share):
    """Loss and gradients of a share of a batch at the weights p."""
    leaves = {k: v.detach().requires_grad_() for k, v in p.items()}
    loss = share * loss_of(leaves, c, inputs, targets)
    return float(loss.detach()), dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))


class Replica:
    """A pipeline that trains: all replicas, if they average gradients, or one that trains on its own.

    The rows of each replica's first microbatches of batch t, the stale ones, are at x_{t-1}, the others at x_t. Replicas
    have consecutive rows. The update of the batch's mean gradient is subtracted from x_t. x_{-1} = x_0.
    """

    def __init__(self, p, c, config, rows):
        self.c, self.train, self.schedule = c, config["train"], config.get("lr", {})
        self.optimizers = {k: optimizer_for(k, t, config["optimizer"]) for k, t in p.items()}
        self.feedback = config.get("pipeline", {}).get("correction", "none") == "error_feedback"
        stale, of = stale_microbatches(config)
        self.staleness = stale / of
        size = self.train["batch_size"] // self.train.get("microbatches", 1)
        self.is_stale = torch.arange(rows) // size % of < stale
        self.p, self.before, self.last = p, p, dict.fromkeys(p, 0.0)  # x_t, x_{t-1} and u_{t-1}

    def step(self, t, inputs, targets):
        """Trains on batch t. Its loss, and its gradients and their norm before clipping."""
        loss, grads = 0.0, dict.fromkeys(self.p, 0.0)
        for weights, some in ((self.before, self.is_stale), (self.p, ~self.is_stale)):
            if some.any():
                part, g = gradients_of(weights, self.c, inputs[some], targets[some], float(some.sum()) / len(some))
                loss, grads = loss + part, {k: grads[k] + g[k] for k in self.p}
        norm = math.sqrt(sum(float(g.pow(2).sum()) for g in grads.values()))
        limit = self.train.get("grad_clip", 1.0)
        clip = min(1.0, limit / (norm + 1e-6)) if limit else 1.0
        factor = lr_factor(t, self.train["steps"], self.schedule)
        with torch.no_grad():
            self.before, self.p = self.p, {**self.p}
            for k, x in self.before.items():
                kept, u = self.optimizers[k].update(x, grads[k] * clip, t, factor)
                self.p[k] = x * kept - (u + self.staleness * (u - self.last[k]) if self.feedback else u)
                self.last[k] = u
        return loss, grads, norm


def replay(config, root, dtype, steps=None):
    """Losses, gradient norms before clipping, step 0's gradients, the weights after the last step.

    Of replicas that train on their own, loss and norm are their means, the gradients the first one's, and the weights the
    outer weights.
    """
    torch_dtype = {"f64": torch.float64, "f32": torch.float32}[dtype]
    folder = os.path.join(root, config["init"]["from"])
    c = json.load(open(os.path.join(folder, "config.json")))
    p = {k: t.to(torch_dtype) for k, t in load_safetensors(os.path.join(folder, "model.safetensors")).items()}
    tokens = torch.cat([load_tokens(os.path.join(root, f)) for f in config["data"]["train"]])
    train, schedule, pipeline = config["train"], config.get("lr", {}), config.get("pipeline", {})
    if config["data"].get("shuffle", True) or config["data"].get("val_fraction", 0.01):
        raise SystemExit("a replay needs data.shuffle: false and data.val_fraction: 0")
    if schedule.get("schedule", "cosine") != "cosine":
        raise SystemExit(f"lr.schedule: {schedule['schedule']}: only cosine is replayed")
    if pipeline.get("correction", "none") not in ("none", "error_feedback"):
        raise SystemExit(f"pipeline.correction: {pipeline['correction']}: only error_feedback is replayed")
    independent = pipeline.get("local_steps", 0) > 0
    n, rows = pipeline.get("replicas", 1) if independent else 1, train["batch_size"]
    replicas = [Replica(p, c, config, rows // n) for _ in range(n)]
    exchanges = replicas_oracle.Exchanges(p, replicas, config, train["steps"]) if independent else None

    losses, norms, grads0 = [], [], None
    for t in range(steps or train["steps"]):
        inputs, targets = batch(tokens, t, rows, config["model"]["seq_len"])
        results = [r.step(t, *share) for r, *share in zip(replicas, inputs.chunk(n), targets.chunk(n))]
        losses.append(sum(loss for loss, _, _ in results) / n)
        norms.append(sum(norm for _, _, norm in results) / n)
        grads0 = grads0 or results[0][1]
        if independent:
            exchanges.after(t + 1)
    return {"losses": losses, "grad_norms": norms, "grads": grads0,
            "weights": exchanges.outer if independent else replicas[0].p}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("config")
    a.add_argument("--root", default=".")
    a.add_argument("--dtype", choices=["f64", "f32"], default="f64")
    a.add_argument("--steps", type=int, help="stop early; the schedule stays that of train.steps")
    a.add_argument("--json", help="where to write the report (default: standard output)")
    a.add_argument("--grads", help="where to write the gradients of step 0")
    a.add_argument("--weights", help="where to write the weights after the last step")
    a = a.parse_args()
    # YAML 1.1 reads 3e-4 as a string; a gpupipe config means the number.
    r = replay(numbers(yaml.safe_load(open(a.config))), a.root, a.dtype, a.steps)
    if a.grads:
        save_safetensors(a.grads, r["grads"])
    if a.weights:
        save_safetensors(a.weights, r["weights"])
    report = json.dumps({"dtype": a.dtype, "losses": r["losses"], "grad_norms": r["grad_norms"],
                         "grad_norm_of": norms_of(r["grads"]), "weight_norm_of": norms_of(r["weights"])}, indent=1)
    print(report, file=open(a.json, "w") if a.json else None)


def numbers(v):
    if isinstance(v, dict):
        return {k: numbers(x) for k, x in v.items()}
    if isinstance(v, list):
        return [numbers(x) for x in v]
    if isinstance(v, str):
        try:
            return float(v)
        except ValueError:
            return v
    return v


def norms_of(tensors):
    return {k: float(t.norm()) for k, t in sorted(tensors.items())}


if __name__ == "__main__":
    main()
