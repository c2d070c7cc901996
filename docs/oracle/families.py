#!/usr/bin/env python3
"""Writes the golden files of the model families with Hugging Face's transformers, and checks exports.

    families.py TEXT OUT [CASE…]     writes OUT/tokens.bin, OUT/windows.bin, OUT/tokenizer.json and a folder a case
    families.py --check OUT EXPORTS  loads each folder EXPORTS/CASE that `gpupipe export` made of OUT/CASE

TEXT is pipeline/train/testdata/golden/text.txt. A case's folder holds a model of random weights as transformers saves it
(config.json, model.safetensors in bfloat16) and expected.json: the loss of each of 4 windows, 20 greedy tokens after a
prompt, and the losses of 20 training steps under AdamW and under Muon. All are computed in float32 by transformers' own
model, with the optimizers of llama_oracle.py. The check computes losses and greedy tokens of the exports and compares
them with expected.json. Cases are the rows of CASES; without names, those of the golden files.
"""
import argparse
import json
import os
import struct
import sys
import zlib

import numpy as np
import torch
import transformers

import llama_oracle as oracle

WORDS, SEQ, WINDOWS, PROMPT, NEW, STEPS, ROWS = 47, 40, 4, 8, 20, 20, 4
SIZES = {"vocab_size": WORDS, "max_position_embeddings": 64, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
         "num_attention_heads": 6, "num_key_value_heads": 3, "rms_norm_eps": 1e-5, "bos_token_id": None, "eos_token_id": None,
         "pad_token_id": None, "tie_word_embeddings": False}


def rope(theta, **scaling):
    return {"rope_theta": theta, "rope_type": "default", **scaling}


# Each row: the folder, transformers' class and what its config has besides SIZES. Families share sizes where they can,
# so that their tests share kernels.
CASES = {
    # Six heads on three, head_dim unlike d_model/n_heads, every branch of llama3's scaling.
    "llama": ("Llama", {"hidden_size": 18, "head_dim": 10, "tie_word_embeddings": True, "rope_parameters": rope(
        100.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=24)}),
    # A window far below a block of keys.
    "mistral": ("Mistral", {"head_dim": 4, "sliding_window": 5, "rope_parameters": rope(10000.0)}),
    "qwen3": ("Qwen3", {"head_dim": 12, "rope_parameters": rope(1e6), "tie_word_embeddings": True}),
    "olmo2": ("Olmo2", {"rope_parameters": rope(10000.0)}),
    "olmo3": ("Olmo3", {"num_hidden_layers": 4, "sliding_window": 5,
                        "rope_parameters": {k: rope(1e4) for k in ("full_attention", "sliding_attention")}}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "rope_parameters": rope(10000.0),
                            "tie_word_embeddings": True}),
    # OLMoE: two of five experts, weights not normalized.
    "olmoe": ("Olmoe", {"intermediate_size": 8, "num_experts": 5, "num_experts_per_tok": 2,
                        "norm_topk_prob": False, "rope_parameters": rope(10000.0)}),
    # A dense layer first, then all of four experts.
    "qwen3-moe": ("Qwen3Moe", {"head_dim": 4, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 4,
                               "norm_topk_prob": True, "mlp_only_layers": [0], "rope_parameters": rope(10000.0)}),
    "one-expert": ("Qwen3Moe", {"head_dim": 4, "moe_intermediate_size": 8, "num_experts": 1, "num_experts_per_tok": 1,
                                "norm_topk_prob": True, "rope_parameters": rope(10000.0)}),
    "mixtral": ("Mixtral", {"head_dim": 4, "intermediate_size": 8, "num_local_experts": 6, "num_experts_per_tok": 2,
                            "sliding_window": 5, "rope_parameters": rope(10000.0)}),
    # DeepSeek-V3's expert block with ordinary attention.
    "glm4-moe": ("Glm4Moe", {"head_dim": 4, "moe_intermediate_size": 8, "n_routed_experts": 6, "num_experts_per_tok": 2,
                             "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "use_qk_norm": True,
                             "norm_topk_prob": True, "num_mtp_layers": 0,
                             "rope_parameters": rope(10000.0, partial_rotary_factor=1.0)}),
    # Norms without weights, also after the embedding; squared ReLU; softcap; the class rotates the other way around.
    "nanochat": ("NanoChat", {"head_dim": 4, "final_logit_softcapping": 3.0, "rms_norm_eps": 1e-6, "rope_parameters": rope(10000.0)}),
    "dots1": ("Dots1", {"head_dim": 4, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
                        "n_shared_experts": 2, "first_k_dense_replace": 0, "routed_scaling_factor": 2.5, "sliding_window": None,
                        "norm_topk_prob": False, "rope_parameters": rope(10000.0)}),
}
# These have no golden files: they are for comparisons at development time.
LIVE = ("dots1",)
ADAMW = {"name": "adamw", "lr": 0.003, "weight_decay": 0.1, "adamw": {"betas": [0.9, 0.95], "eps": 1e-8}}
MUON = {"name": "muon", "lr": 0.02, "momentum": 0.95, "weight_decay": 0.1,
        "adamw": {"lr": 0.003, "betas": [0.9, 0.95], "eps": 1e-8}}


def make(case, seed):
    name, extra = CASES[case]
    return build(name, {**SIZES, **extra}, seed)


def build(name, keys, seed):
    """A model of random weights in bfloat16's numbers. Matrices keep activations near one, so that every part matters."""
    config = getattr(transformers, name + "Config")(**keys, attn_implementation="eager")
    model = getattr(transformers, name + "ForCausalLM")(config)
    rng = np.random.default_rng(seed)
    tensors = {**dict(model.named_parameters()), **{k: b for k, b in model.named_buffers() if "e_score" in k}}
    with torch.no_grad():
        for key, p in sorted(tensors.items()):
            if "norm" in key:
                x = rng.normal(1, 0.2, p.shape)
            elif "e_score" in key:
                x = rng.normal(0, 0.1, p.shape)
            elif "embed" in key:
                x = rng.normal(0, 0.5, p.shape)
            else:
                x = rng.normal(0, (2.0 if key.endswith("gate.weight") else 0.8) / max(p.shape[-1], 1) ** 0.5, p.shape)
            p.copy_(torch.tensor(x).bfloat16())
    return model


def load(folder, dtype=torch.float32):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    if hasattr(model.config, "_experts_implementation"):
        model.config._experts_implementation = "eager"
    return model


def loss_of(model, inputs, targets):
    logits = model(input_ids=inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape).mean(1)


def greedy(model, prompt):
    """The tokens, and the least distance of the likeliest token's logit from the next one's."""
    text, margin = list(prompt), float("inf")
    for _ in range(NEW):
        logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
        first, second = logits.topk(2).values.tolist()
        text.append(int(logits.argmax()))
        margin = min(margin, first - second)
    prompt = torch.tensor([prompt])
    if getattr(model.config, "sliding_window", None) != 1:  # of which transformers caches all tokens instead of none
        cached = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert cached[0].tolist() == text or margin < 1e-3, f"with a cache {cached[0].tolist()}, without {text}, margin {margin}"
    return text[prompt.shape[1]:], margin


def matrices(model):
    """Parameters as gpupipe has them: each expert's gate, up and down projection is a matrix of its own."""
    for name, p in model.named_parameters():
        if name.endswith("experts.gate_up_proj"):
            half = p.shape[1] // 2
            for e in range(p.shape[0]):
                yield f"{name}.{e}.gate", p, (e, slice(0, half))
                yield f"{name}.{e}.up", p, (e, slice(half, None))
        elif name.endswith("experts.down_proj"):
            for e in range(p.shape[0]):
                yield f"{name}.{e}", p, (e,)
        else:
            yield name, p, ()


def train(model, tokens, options, seq=SEQ):
    """Losses of the steps, with gpupipe's schedule and clipping."""
    pieces = [(p, at, oracle.optimizer_for(name, p[at], options)) for name, p, at in matrices(model)]
    losses = []
    for t in range(STEPS):
        inputs, targets = oracle.batch(tokens, t, ROWS, seq)
        model.zero_grad()
        loss = loss_of(model, inputs, targets).mean()
        loss.backward()
        losses.append(float(loss.detach()))
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        clip = min(1.0, 1.0 / (float(norm) + 1e-6))
        factor = oracle.lr_factor(t, STEPS, {"warmup": 4, "min_ratio": 0.1})
        with torch.no_grad():
            for p, at, o in pieces:
                p[at] = o.step(p[at].clone(), p.grad[at] * clip, t, factor)
    return losses


def routing_margin(model, compute):
    """The least difference between the scores of the last expert that is chosen and the first that is not, in a computation."""
    least = []

    def look(module, inputs, output):
        scores = output[0].detach().float()
        bias = getattr(module, "e_score_correction_bias", None)
        scores = scores.softmax(-1) if bias is None else scores.sigmoid() + bias
        if module.top_k < scores.shape[-1]:
            top = scores.topk(module.top_k + 1, -1).values
            least.append(float((top[:, -2] - top[:, -1]).min()))

    hooks = [m.register_forward_hook(look) for n, m in model.named_modules() if n.endswith("mlp.gate") and hasattr(m, "top_k")]
    compute()
    for h in hooks:
        h.remove()
    return min(least, default=None)


def describe(folder, tokens):
    """Losses of the windows and greedy tokens of a model in a folder."""
    model = load(folder)
    with torch.no_grad():
        losses = loss_of(model, *oracle.batch(tokens, 0, WINDOWS, SEQ)).tolist()
        continuation, margin = greedy(model, tokens[:PROMPT].tolist())
    return {"losses": losses, "greedy": continuation}, margin


def write_tokens(text, path, windows):
    """Each word is a token, by its hash."""
    ids = [zlib.crc32(w) % WORDS for w in text.split()][:windows * SEQ + 1]
    ids[3] = WORDS - 1
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + np.array(ids, np.uint16).tobytes())


def write_tokenizer(path):
    """A tokenizer that knows as many tokens as the models; the shard is encoded already."""
    vocab = {chr(ord("!") + i): i for i in range(WORDS)}
    with open(path, "w") as f:
        json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "decoder": {"type": "Fuse"},
                   "model": {"type": "BPE", "unk_token": None, "vocab": vocab, "merges": []}}, f, separators=(",", ":"))


def write_case(case, out, tokens):
    folder, seed = os.path.join(out, case), zlib.crc32(case.encode()) % 1000
    while True:
        make(case, seed).to(torch.bfloat16).save_pretrained(folder)
        expected, greedy_margin = describe(folder, tokens)
        model = load(folder)
        routing = routing_margin(model, lambda: loss_of(model, *oracle.batch(tokens, 0, WINDOWS, SEQ)))
        if greedy_margin > 1e-2 and (routing is None or routing > 1e-4):
            break
        seed += 1  # a tie would make the next token, or an expert, a matter of rounding
    difference = 0.0
    for options in (ADAMW, MUON):
        f32, f64 = (train(load(folder, d), tokens, options) for d in (torch.float32, torch.float64))
        expected[options["name"]] = f32
        difference = max(difference, *(abs(a - b) / b for a, b in zip(f32, f64)))
    expected["f32_max_relative_difference"] = difference
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(folder, extra)):
            os.remove(os.path.join(folder, extra))
    with open(os.path.join(folder, "expected.json"), "w") as f:
        print(json.dumps(expected), file=f)
    print(f"{case}: seed {seed}, losses {expected['losses']}, adamw to {expected['adamw'][-1]:.4f}, muon to {expected['muon'][-1]:.4f}, "
          f"f32 differs by {difference:.1e}, routing margin {routing}, greedy margin {greedy_margin:.3f}")


def check(out, exports):
    """Compares exports with expected.json and returns whether one differs."""
    tokens, bad = oracle.load_tokens(os.path.join(out, "tokens.bin")), False
    for case in sorted(os.listdir(exports)):
        want = json.load(open(os.path.join(out, case, "expected.json")))
        got, _ = describe(os.path.join(exports, case), tokens)
        difference = max(abs(a - b) / b for a, b in zip(got["losses"], want["losses"]))
        bad = bad or difference > 2e-6 or got["greedy"] != want["greedy"]
        print(f"{case}: losses differ by {difference:.1e}, greedy tokens {'equal' if got['greedy'] == want['greedy'] else 'DIFFER'}")
    return bad


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--check", action="store_true")
    a.add_argument("paths", nargs="+")
    a = a.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if a.check:
        sys.exit(check(*a.paths))
    text, out, *only = a.paths
    os.makedirs(out, exist_ok=True)
    for name, windows in (("tokens.bin", STEPS * ROWS), ("windows.bin", WINDOWS)):
        write_tokens(open(text, "rb").read(), os.path.join(out, name), windows)
    write_tokenizer(os.path.join(out, "tokenizer.json"))
    tokens = oracle.load_tokens(os.path.join(out, "tokens.bin"))
    for case in only or [c for c in CASES if c not in LIVE]:
        write_case(case, out, tokens)


if __name__ == "__main__":
    main()
