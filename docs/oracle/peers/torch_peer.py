"""Trains a Llama in PyTorch: fused attention, fused AdamW, or Muon over matrices of one shape at once. See peers.py."""
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import work


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.heads, self.kv_heads, self.head_dim = (
            c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"])
        self.q_proj = nn.Linear(d, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(d, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(d, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, d, bias=False)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        q = rotate(self.q_proj(x).view(B, T, self.heads, -1), cos, sin).transpose(1, 2)
        k = rotate(self.k_proj(x).view(B, T, self.kv_heads, -1), cos, sin).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.kv_heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, ff = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(d, ff, bias=False), nn.Linear(d, ff, bias=False)
        self.down_proj = nn.Linear(ff, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Stack(nn.Module):
    """The matrices of all experts."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))


class Mixture(nn.Module):
    """A mixture of experts without dropped tokens. Rows are in the order of their experts, which have products of their
    own or share those of grouped_mm."""

    def __init__(self, c):
        super().__init__()
        d, ff, self.grouped = c["hidden_size"], c["moe_intermediate_size"], c["grouped"]
        self.count, self.k = c["num_experts"], c["num_experts_per_tok"]
        self.gate = nn.Linear(d, self.count, bias=False)
        self.experts = nn.ModuleDict({"gate_proj": Stack(self.count, ff, d), "up_proj": Stack(self.count, ff, d),
                                      "down_proj": Stack(self.count, d, ff)})

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        weights, ids = F.softmax(self.gate(x), -1).topk(self.k)
        weights = (weights / weights.sum(-1, keepdim=True)).flatten()
        order = ids.flatten().argsort(stable=True)
        token, counts = order // self.k, torch.bincount(ids.flatten(), minlength=self.count)
        gate, up, down = (self.experts[name].weight.mT for name in ("gate_proj", "up_proj", "down_proj"))
        if self.grouped:
            product = partial(F.grouped_mm, offs=counts.cumsum(0).int())
            rows = x[token]
            y = product(F.silu(product(rows, gate)) * product(rows, up), down)
        else:
            y = torch.cat([(F.silu(rows @ gate[e]) * (rows @ up[e])) @ down[e]
                           for e, rows in enumerate(x[token].split(counts.tolist()))])
        return torch.zeros_like(x).index_add(0, token, y * weights[order, None]).view(shape)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm, self.self_attn = nn.RMSNorm(d, eps), Attention(c)
        self.post_attention_layernorm, self.mlp = nn.RMSNorm(d, eps), (Mixture if "num_experts" in c else MLP)(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Parameters have the names of Hugging Face's Llama without "model."."""

    def __init__(self, c, seq_len):
        super().__init__()
        d = c["hidden_size"]
        self.embed_tokens = nn.Embedding(c["vocab_size"], d)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(d, c["rms_norm_eps"])
        self.lm_head = nn.Linear(d, c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.lm_head.weight = self.embed_tokens.weight
        half = c["head_dim"] // 2
        angle = torch.arange(seq_len)[:, None] * c["rope_theta"] ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos()[:, None], persistent=False)  # [T, 1, head_dim/2]
        self.register_buffer("sin", angle.sin()[:, None], persistent=False)

    def forward(self, tokens, targets):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def rotate(x, cos, sin):
    """Rotary position embedding of x [B, T, heads, head_dim]."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def orthogonalize(x):
    """Newton–Schulz iteration of matrices [n, rows, cols], rows ≤ cols."""
    a, b, c = work.JORDAN
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(work.MUON_STEPS):
        s = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(s, s, s, beta=b, alpha=c), x, beta=a)
    return x


class Muon:
    """Muon in f32. Matrices of one shape, or of its transpose, are orthogonalized together."""

    def __init__(self, matrices, orthogonalize):
        self.orthogonalize = orthogonalize
        self.groups = {}
        for p in matrices:
            self.groups.setdefault((min(p.shape), max(p.shape)), []).append(p)
        self.momenta = {k: [torch.zeros_like(p) for p in g] for k, g in self.groups.items()}

    @torch.no_grad()
    def step(self):
        lr, beta = work.MUON["lr"], work.MUON["momentum"]
        for k, group in self.groups.items():
            momenta, grads = self.momenta[k], [p.grad for p in group]
            torch._foreach_lerp_(momenta, grads, 1 - beta)
            wide = torch.stack([u if u.shape == k else u.T for u in torch._foreach_lerp(grads, momenta, beta)])
            updates = [u if p.shape == k else u.T for p, u in zip(group, self.orthogonalize(wide))]
            torch._foreach_mul_(group, 1 - lr * work.WEIGHT_DECAY)
            for p, u in zip(group, updates):
                p.add_(u, alpha=-lr * math.sqrt(max(1, p.shape[0] / p.shape[1])))


def config(job):
    """The model's config in Hugging Face's words."""
    c = job.config()
    if c["model_type"] == "gpupipe":
        m = c["model"]
        heads, moe = m["n_heads"], m["moe"]
        assert moe["normalize"] and not moe["shared"] and not moe["dense_first"]
        c = {"hidden_size": m["d_model"], "num_attention_heads": heads, "num_key_value_heads": m["n_kv_heads"],
             "head_dim": m["d_model"] // heads, "num_hidden_layers": m["n_layers"], "vocab_size": m["vocab_size"],
             "rms_norm_eps": m["norm"]["eps"], "rope_theta": m["rope"]["theta"],
             "tie_word_embeddings": m["tie_embeddings"], "num_experts": moe["experts"],
             "num_experts_per_tok": moe["top_k"], "moe_intermediate_size": moe["d_ff"]}
    return {**c, "grouped": job.args.grouped}


def main():
    job = work.Job("--compile", "--max-autotune", "--grouped", "--bf16")
    torch.set_num_threads(job.args.threads)
    model = Llama(config(job), job.seq_len)
    weights = {k.removeprefix("model."): torch.from_numpy(v) for k, v in job.weights().items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)

    parameters = dict(model.named_parameters())
    muon = [p for k, p in parameters.items() if job.args.optimizer == "muon" and work.under_muon(k, p.shape)]
    rest = [p for p in parameters.values() if not any(p is q for q in muon)]
    optimizers = [torch.optim.AdamW([
        {"params": [p for p in rest if p.dim() >= 2], "weight_decay": work.WEIGHT_DECAY},
        {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0}], **work.ADAMW, fused=True)]
    wrap = lambda f: f
    if job.args.compile or job.args.max_autotune:
        wrap = partial(torch.compile, dynamic=False, mode="max-autotune" if job.args.max_autotune else None)
    if muon:
        optimizers.append(Muon(muon, wrap(orthogonalize)))
    loss_of = wrap(model)

    def step(inputs, targets):
        with torch.autocast("cpu", torch.bfloat16, enabled=job.args.bf16):
            loss = loss_of(torch.from_numpy(inputs), torch.from_numpy(targets))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), work.GRAD_CLIP)
        for o in optimizers:
            o.step()
        for p in model.parameters():
            p.grad = None
        return loss.detach()

    work.train(job, step)


if __name__ == "__main__":
    main()
