"""Trains a Llama in JAX: one compiled step that reuses the memory of weights and optimizer state. See peers.py."""
import math
from functools import partial

import jax
import jax.numpy as jnp

import work


def rms_norm(x, weight, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def rotate(x, theta):
    """Rotary position embedding of x [B, T, heads, head_dim]."""
    T, half = x.shape[1], x.shape[-1] // 2
    angle = jnp.arange(T)[:, None, None] * theta ** (-jnp.arange(half) / half)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def loss_of(p, c, inputs, targets):
    B, T = inputs.shape
    eps, theta, head_dim = c["rms_norm_eps"], c["rope_theta"], c["head_dim"]
    x = p["model.embed_tokens.weight"][inputs]
    for i in range(c["num_hidden_layers"]):
        w = {k.split(".", 3)[3]: v for k, v in p.items() if k.startswith(f"model.layers.{i}.")}
        h = rms_norm(x, w["input_layernorm.weight"], eps)
        q, k, v = ((h @ w[f"self_attn.{name}_proj.weight"].T).reshape(B, T, -1, head_dim) for name in "qkv")
        y = jax.nn.dot_product_attention(rotate(q, theta), rotate(k, theta), v, is_causal=True)
        x = x + y.reshape(B, T, -1) @ w["self_attn.o_proj.weight"].T
        h = rms_norm(x, w["post_attention_layernorm.weight"], eps)
        h = jax.nn.silu(h @ w["mlp.gate_proj.weight"].T) * (h @ w["mlp.up_proj.weight"].T)
        x = x + h @ w["mlp.down_proj.weight"].T
    head = p["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    logits = rms_norm(x, p["model.norm.weight"], eps) @ head.T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1))


def adamw(p, g, state, t):
    m, v = state
    lr, (b1, b2) = work.ADAMW["lr"], work.ADAMW["betas"]
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    update = m / (1 - b1 ** t) / (jnp.sqrt(v / (1 - b2 ** t)) + work.ADAMW["eps"])
    return p * (1 - lr * (work.WEIGHT_DECAY if p.ndim == 2 else 0)) - lr * update, (m, v)


def orthogonalize(x):
    """Newton–Schulz iteration of matrices [n, rows, cols], rows ≤ cols."""
    a, b, c = work.JORDAN
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
    for _ in range(work.MUON_STEPS):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x


def muon(p, g, state):
    """Weights and momenta after a step. Matrices of one shape, or of its transpose, are orthogonalized together."""
    lr, beta = work.MUON["lr"], work.MUON["momentum"]
    state = {k: beta * state[k] + (1 - beta) * g[k] for k in p}
    update = {k: (1 - beta) * g[k] + beta * state[k] for k in p}
    groups, out = {}, {}
    for k, x in p.items():
        groups.setdefault((min(x.shape), max(x.shape)), []).append(k)
    for shape, names in groups.items():
        wide = orthogonalize(jnp.stack([update[k] if p[k].shape == shape else update[k].T for k in names]))
        for k, u in zip(names, wide):
            scale = math.sqrt(max(1, p[k].shape[0] / p[k].shape[1]))
            out[k] = p[k] * (1 - lr * work.WEIGHT_DECAY) - lr * scale * (u if p[k].shape == shape else u.T)
    return out, state


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def step(c, p, state, t, inputs, targets):
    loss, g = jax.value_and_grad(loss_of)(p, dict(c), inputs, targets)
    norm = jnp.sqrt(sum(jnp.sum(x * x) for x in g.values()))
    clip = jnp.minimum(1, work.GRAD_CLIP / (norm + 1e-6))
    g = {k: x * clip for k, x in g.items()}
    matrices = state["muon"].keys()
    out, momenta = muon({k: p[k] for k in matrices}, g, state["muon"])
    moments = {}
    for k, s in state["adamw"].items():
        out[k], moments[k] = adamw(p[k], g[k], s, t)
    return loss, out, {"muon": momenta, "adamw": moments}


def main():
    job = work.Job()
    keys = ("hidden_size", "num_hidden_layers", "head_dim", "rms_norm_eps", "rope_theta", "tie_word_embeddings")
    c = tuple((k, job.config()[k]) for k in keys)
    p = {k: jnp.asarray(v) for k, v in job.weights().items()}
    matrices = {k for k, x in p.items() if job.args.optimizer == "muon" and work.under_muon(k, x.shape)}
    state = {"muon": {k: jnp.zeros_like(p[k]) for k in matrices},
             "adamw": {k: (jnp.zeros_like(x), jnp.zeros_like(x)) for k, x in p.items() if k not in matrices}}
    t = 0

    def run(inputs, targets):
        nonlocal p, state, t
        t += 1
        loss, p, state = step(c, p, state, float(t), inputs, targets)
        return loss

    work.train(job, run)


if __name__ == "__main__":
    main()
