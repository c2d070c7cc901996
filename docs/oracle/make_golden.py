#!/usr/bin/env python3
"""Writes the golden files of pipeline/train/testdata/golden with llama_oracle.py.

    make_golden.py TEXT OUT

TEXT is the King James Bible as `bible -f gen1:1-rev22:21` prints it; OUT is the golden folder.
"""
import json
import os
import platform
import struct
import sys
import zlib

import numpy as np
import torch
import yaml

import llama_oracle as oracle

ROOT = "testdata/golden"  # as the tests of pipeline/train see it
SEED = 1

MODELS = {
    # name: (vocab, d_model, n_layers, n_heads, n_kv_heads, d_ff, seq_len, tied, rope_theta, dtype on disk)
    "tied": (256, 64, 4, 4, 4, 176, 64, True, 10000.0, "F32"),
    "untied": (256, 64, 4, 4, 4, 176, 64, False, 10000.0, "F32"),
    "odd": (1003, 96, 2, 3, 1, 256, 100, True, 10000.0, "BF16"),
    "gqa": (256, 40, 2, 4, 2, 112, 64, False, 500000.0, "F32"),
}
ADAMW = {"name": "adamw", "lr": 0.003, "weight_decay": 0.1, "adamw": {"betas": [0.9, 0.95], "eps": 1e-8}}
MUON = {"name": "muon", "lr": 0.02, "momentum": 0.95, "weight_decay": 0.1,
        "adamw": {"lr": 0.003, "betas": [0.9, 0.95], "eps": 1e-8}}
POLAR = {**MUON, "lr": 0.002, "newton_schulz": "polar_express", "scale": "match_rms_adamw"}
REST = {"adamw": {"lr": 0.003, "betas": [0.9, 0.95], "eps": 1e-8}}
NORMUON = {**MUON, "name": "normuon"}
LION = {"name": "lion", "lr": 0.0005, "weight_decay": 0.3}
ADAN = {"name": "adan", "lr": 0.003, "weight_decay": 0.1}
MARS = {"name": "mars", "lr": 0.003, "weight_decay": 0.1, **REST}
RUNS = [
    # model, run, batch_size, microbatches, grad_clip, optimizer
    ("tied", "adamw", 4, 1, 1.0, ADAMW),
    ("tied", "muon", 4, 1, 1.0, MUON),
    ("untied", "adamw", 4, 1, 1.0, ADAMW),
    ("untied", "muon", 4, 1, 1.0, MUON),
    ("untied", "muon-polar", 4, 1, 1.0, POLAR),
    ("odd", "adamw", 1, 1, 1.0, ADAMW),
    ("odd", "muon", 1, 1, 1.0, MUON),
    ("gqa", "adamw-clip", 4, 2, 0.3, ADAMW),
    ("gqa", "normuon", 4, 2, 1.0, NORMUON),
    ("gqa", "lion", 4, 2, 1.0, LION),
    ("gqa", "adan", 4, 2, 1.0, ADAN),
    ("gqa", "mars", 4, 2, 1.0, MARS),
]
# Runs with a delay and another batch, in the folder `stale` of a model. Clipping is active in most steps.
STALE = [
    # model, run, batch_size, microbatches, grad_clip, optimizer, stale microbatches, correction
    ("gqa", "adamw-1-of-4", 4, 4, 0.5, ADAMW, 1, "none"),
    ("gqa", "muon-3-of-8", 8, 8, 0.5, MUON, 3, "none"),
    ("gqa", "adamw-2-of-4-feedback", 4, 4, 0.5, ADAMW, 2, "error_feedback"),
    ("gqa", "adamw-all-feedback", 4, 4, 0.5, ADAMW, "all", "error_feedback"),
    ("tied", "muon-1-of-4", 4, 4, 0.5, MUON, 1, "none"),
    ("tied", "adamw-3-of-8", 8, 8, 0.5, ADAMW, 3, "none"),
    ("tied", "muon-2-of-4-feedback", 4, 4, 0.5, MUON, 2, "error_feedback"),
    ("tied", "muon-all", 4, 4, 0.5, MUON, "all", "none"),
]
# Replicas that train on their own, in the folder `replicas` of a model.
REPLICAS = [
    # model, run, batch_size, microbatches, grad_clip, optimizer, pipeline
    ("gqa", "muon-2-every-3", 4, 2, 0.5, MUON, {"replicas": 2, "local_steps": 3}),
    ("gqa", "adamw-2-every-8-late", 4, 2, 0.5, ADAMW,
     {"replicas": 2, "local_steps": 8, "outer": {"late": 5, "momentum": 0.9, "correction": "plain"}}),
    ("gqa", "muon-4-int4-late-feedback", 8, 4, 0.5, MUON,
     {"replicas": 4, "local_steps": 4, "outer": {"wire": "int4", "late": 2, "correction": "error_feedback"}}),
    ("tied", "adamw-3-every-step-bf16", 6, 3, 0.5, ADAMW, {"replicas": 3, "local_steps": 1, "outer": {"wire": "bf16"}}),
    ("tied", "muon-2-eager", 4, 4, 0.5, MUON,
     {"replicas": 2, "local_steps": 4, "outer": {"late": 4, "correction": "eager"}}),
    ("tied", "muon-2-int8-stale", 8, 8, 0.5, MUON,
     {"replicas": 2, "local_steps": 5, "outer": {"wire": "int8", "late": 3}, "delay": 1, "stale_microbatches": 1}),
    ("tied", "muon-2-int2", 4, 2, 0.5, MUON, {"replicas": 2, "local_steps": 6, "outer": {"wire": "int2"}}),
]


def model_config(vocab, d, layers, heads, kv, ff, seq, tied, theta, dtype):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": d,
            "intermediate_size": ff, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv, "head_dim": d // heads, "max_position_embeddings": seq,
            "rms_norm_eps": 1e-5, "rope_theta": theta, "tie_word_embeddings": tied, "hidden_act": "silu",
            "attention_bias": False, "mlp_bias": False, "initializer_range": 0.02,
            "torch_dtype": "bfloat16" if dtype == "BF16" else "float32"}


def initial_weights(c):
    """normal(0, 0.02); norms 1 + noise, so that a norm whose weight is ignored shows."""
    rng = np.random.default_rng(SEED)
    d, ff, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"] * c["head_dim"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], d), "model.norm.weight": (d,)}
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes.update({layer + "input_layernorm.weight": (d,), layer + "post_attention_layernorm.weight": (d,),
                       layer + "self_attn.q_proj.weight": (d, d), layer + "self_attn.k_proj.weight": (kv, d),
                       layer + "self_attn.v_proj.weight": (kv, d), layer + "self_attn.o_proj.weight": (d, d),
                       layer + "mlp.gate_proj.weight": (ff, d), layer + "mlp.up_proj.weight": (ff, d),
                       layer + "mlp.down_proj.weight": (d, ff)})
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], d)
    return {k: torch.tensor(rng.normal(float(len(s) == 1), 0.02 if len(s) == 2 else 0.1, s))
            for k, s in sorted(shapes.items())}


def write_shard(path, text, vocab):
    """Each word is a token, by its hash: synthetic, but with the statistics of text."""
    tokens = np.array([zlib.crc32(w) % vocab for w in text.split()], np.uint16)
    tokens[7] = vocab - 1  # the last token of an odd vocabulary is used
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    open(path, "wb").write(header + tokens.tobytes())


def run_config(model, run, batch_size, microbatches, clip, optimizer):
    vocab, d, layers, heads, kv, ff, seq, tied, theta, _ = MODELS[model]
    return {
        "model": {"arch": "llama", "vocab_size": vocab, "d_model": d, "n_layers": layers, "n_heads": heads,
                  "n_kv_heads": kv, "d_ff": ff, "seq_len": seq, "rope_theta": theta, "norm_eps": 0.00001,
                  "tie_embeddings": tied},
        "init": {"from": f"{ROOT}/{model}"},
        "data": {"train": [f"{ROOT}/words.bin" if model == "odd" else f"{ROOT}/text.txt"], "val_fraction": 0,
                 "tokenizer": "bytes", "shuffle": False},
        "train": {"steps": 20, "batch_size": batch_size, "microbatches": microbatches, "grad_clip": clip,
                  "eval_every": 0, "save_every": 0, "precision": "f32"},
        "optimizer": optimizer,
        "lr": {"schedule": "cosine", "warmup": 4, "min_ratio": 0.1},
        "run": {"dir": f"runs/{model}-{run}"},
    }


def main():
    text, out = sys.argv[1:]
    root = out[:-len(ROOT)] if out.endswith(ROOT) else sys.exit(f"OUT must end with {ROOT}")
    os.makedirs(out, exist_ok=True)
    text = open(text, "rb").read(16 << 10)
    open(f"{out}/text.txt", "wb").write(text)
    write_shard(f"{out}/words.bin", text, MODELS["odd"][0])
    for name, shape in MODELS.items():
        os.makedirs(f"{out}/{name}", exist_ok=True)
        c = model_config(*shape)
        with open(f"{out}/{name}/config.json", "w") as f:
            print(json.dumps(c, indent=2), file=f)
        oracle.save_safetensors(f"{out}/{name}/model.safetensors", initial_weights(c), shape[-1])
    for spec in RUNS:
        write_run(root, f"{out}/{spec[0]}", spec[1], run_config(*spec), first_gradients=True)
    for *spec, stale, correction in STALE:
        folder = f"{out}/{spec[0]}/stale"
        os.makedirs(folder, exist_ok=True)
        pipeline = {"delay": 1, "stale_microbatches": stale, "correction": correction}
        write_run(root, folder, spec[1], {**run_config(*spec), "pipeline": pipeline}, first_gradients=False)
    for *spec, pipeline in REPLICAS:
        folder = f"{out}/{spec[0]}/replicas"
        os.makedirs(folder, exist_ok=True)
        write_run(root, folder, spec[1], {**run_config(*spec), "pipeline": pipeline}, first_gradients=False)


def write_run(root, folder, run, config, first_gradients):
    f64, f32 = (oracle.replay(config, root, d) for d in ("f64", "f32"))
    with open(f"{folder}/{run}.yaml", "w") as f:
        yaml.safe_dump(config, f, sort_keys=False, default_flow_style=None, width=110)
    if first_gradients:  # the same for every run of a model
        oracle.save_safetensors(f"{folder}/grads.safetensors", f64["grads"])
    relative = [abs(a - b) / a for a, b in zip(f64["losses"], f32["losses"])]
    gradient = max(float((f32["grads"][k].double() - g).norm() / g.norm()) for k, g in f64["grads"].items())
    with open(f"{folder}/{run}.json", "w") as f:
        print(json.dumps({
            "made_with": f"torch {torch.__version__}, numpy {np.__version__}, python {platform.python_version()}",
            "losses": f64["losses"], "grad_norms": f64["grad_norms"], "losses_f32": f32["losses"],
            "f32_max_relative_difference": max(relative), "f32_max_gradient_difference": gradient,
            "weight_norm_of": oracle.norms_of(f64["weights"])}, indent=1), file=f)
    print(f"{config['run']['dir']}: loss {f64['losses'][0]:.4f} -> {f64['losses'][-1]:.4f}, grad norm "
          f"{min(f64['grad_norms']):.3f}..{max(f64['grad_norms']):.3f}, f32 differs by {max(relative):.1e} in the "
          f"loss, {gradient:.1e} in a gradient")


if __name__ == "__main__":
    main()
