#!/usr/bin/env python3
"""Damages folders of models and checks that gpupipe refuses them with an error that names the file, the key or the tensor.

Each row of DAMAGES changes one folder and says which words the error has. gpupipe eval, train and export all refuse it, with exit
status 1 or 2, without a trace of the program's stack, within 20 s and 600 MB.
"""
import json
import os
import resource
import shutil
import struct
import subprocess
import time

import torch
from safetensors.torch import load_file, save_file

import hf
from hf import families

SEQ = 16
SIZES = {"vocab_size": 47, "hidden_size": 24, "intermediate_size": 33, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3,
         "head_dim": 6, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
MODELS = {
    "dense": ("Llama", {}, "5GB"),
    "shards": ("Qwen3", {}, "10KB"),
    "experts": ("Dots1", {"n_routed_experts": 5, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 7,
                          "first_k_dense_replace": 1, "sliding_window": None}, "5GB"),
    "qwen3-moe": ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 7}, "5GB"),
}


def tensors(change):
    """A damage of model.safetensors' tensors."""
    def damage(folder):
        path = os.path.join(folder, "model.safetensors")
        t = load_file(path)
        change(t)
        save_file(t, path, {"format": "pt"})
    return damage


def keys(**changes):
    """A damage of config.json: values of keys; ... removes a key."""
    def damage(folder):
        path = os.path.join(folder, "config.json")
        c = json.load(open(path))
        for key, v in changes.items():
            if v is ...:
                c.pop(key, None)
            else:
                c[key] = v
        json.dump(c, open(path, "w"))
    return damage


def truncate(name, size):
    """Cuts a file to a size, or from its end if that is negative."""
    def damage(folder):
        path = os.path.join(folder, name)
        os.truncate(path, size if size >= 0 else os.path.getsize(path) + size)
    return damage


def header(text, length=None):
    """Replaces the header of model.safetensors."""
    def damage(folder):
        with open(os.path.join(folder, "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text) if length is None else length) + text)
    return damage


def write(name, text):
    return lambda folder: open(os.path.join(folder, name), "w").write(text)


def index(change):
    def damage(folder):
        path = os.path.join(folder, "model.safetensors.index.json")
        i = json.load(open(path))
        change(i["weight_map"], folder)
        json.dump(i, open(path, "w"))
    return damage


def number(name, v, at=3):
    def change(t):
        t[name].view(-1)[at] = v
    return tensors(change)


def replace(name, f):
    def change(t):
        t[name] = f(t[name])
    return tensors(change)


Q, GATE, EXPERT = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.mlp.gate.weight", "model.layers.2.mlp.experts.3.up_proj.weight"
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
# Each row: the model, the damage's name, the damage, words of the error.
DAMAGES = [
    ("dense", "truncated weights", truncate("model.safetensors", -100), ["model.safetensors"]),
    ("dense", "half of the header", truncate("model.safetensors", 100), ["model.safetensors"]),
    ("dense", "no header", truncate("model.safetensors", 5), ["model.safetensors"]),
    ("dense", "empty weights", truncate("model.safetensors", 0), ["model.safetensors"]),
    ("dense", "a header of 2^60 bytes", header(b"{}", 1 << 60), ["model.safetensors", "header"]),
    ("dense", "a header that is no JSON", header(b"{nothing"), ["model.safetensors", "header"]),
    ("dense", "offsets beyond the file", header(json.dumps({Q: {"dtype": "F32", "shape": [36, 24], "data_offsets": [0, 3456]}}).encode()),
     ["model.safetensors"]),
    ("dense", "a shape whose product overflows", header(json.dumps({Q: {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 0]}}).encode()),
     ["model.safetensors", Q]),
    ("dense", "no weights", lambda folder: os.remove(os.path.join(folder, "model.safetensors")), ["safetensors"]),
    ("dense", "a missing tensor", tensors(lambda t: t.pop(Q)), [Q, "missing"]),
    ("dense", "a transposed tensor", replace("model.layers.0.mlp.up_proj.weight", lambda x: x.T.contiguous()), ["model.layers.0.mlp.up_proj.weight", "[24,33]", "[33,24]"]),
    ("dense", "integers for weights", replace(Q, lambda x: x.to(torch.int32)), [Q, "I32"]),
    ("dense", "8-bit floats for weights", replace(Q, lambda x: x.to(torch.float8_e4m3fn)), [Q, "F8_E4M3"]),
    ("dense", "one tensor more", tensors(lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(36)})), ["model.layers.0.self_attn.q_proj.bias"]),
    ("dense", "a layer more", tensors(lambda t: t.update({"model.layers.3.mlp.up_proj.weight": torch.zeros(33, 24)})), ["model.layers.3.mlp.up_proj.weight"]),
    ("dense", "NaN in a weight", number(Q, float("nan")), [Q, "NaN"]),
    ("dense", "infinity in a norm", number("model.norm.weight", float("inf")), ["model.norm.weight", "Inf"]),
    ("shards", "NaN in a shard", lambda folder: nan_in_shard(folder), ["model.norm.weight", "NaN"]),
    ("shards", "an absent shard", index(lambda m, folder: os.remove(os.path.join(folder, m[Q]))), ["-of-"]),
    ("shards", "an index that names an absent shard", index(lambda m, folder: m.update({Q: "model-00077-of-00077.safetensors"})), ["model-00077-of-00077.safetensors"]),
    ("shards", "an index that names a wrong shard", index(lambda m, folder: m.update({Q: m["model.norm.weight"]})), [Q]),
    ("shards", "an index outside of the folder", index(lambda m, folder: m.update({Q: "../../../etc/passwd"})), ["../../../etc/passwd"]),
    ("shards", "an index without a tensor", index(lambda m, folder: m.pop(Q)), [Q]),
    ("shards", "an index that is no JSON", write("model.safetensors.index.json", "{"), ["model.safetensors.index.json"]),
    ("shards", "an index without weight_map", write("model.safetensors.index.json", "{}"), ["model.safetensors.index.json", "weight_map"]),
    ("experts", "an absent expert", tensors(lambda t: t.pop(EXPERT)), [EXPERT, "missing"]),
    ("experts", "one expert more", tensors(lambda t: t.update({"model.layers.2.mlp.experts.5.up_proj.weight": torch.zeros(7, 24)})),
     ["model.layers.2.mlp.experts.5.up_proj.weight"]),
    ("experts", "an expert of another width", replace(EXPERT, lambda x: x[:5].contiguous()), [EXPERT, "[5,24]", "[7,24]"]),
    ("experts", "a router of another width", replace(GATE, lambda x: x[:4].contiguous()), [GATE, "[4,24]"]),
    ("experts", "one balancing bias of two", tensors(lambda t: t.pop(BIAS)), [BIAS]),
    ("experts", "NaN in a balancing bias", number(BIAS, float("nan")), [BIAS, "NaN"]),
    ("experts", "NaN in a router", number(GATE, float("nan")), [GATE, "NaN"]),
    ("experts", "NaN in an expert", number(EXPERT, float("nan")), [EXPERT, "NaN"]),
    ("experts", "more experts of a token than there are", keys(num_experts_per_tok=6), ["num_experts_per_tok", "6", "5"]),
    ("experts", "no experts of a token", keys(num_experts_per_tok=0), ["num_experts_per_tok", "0"]),
    ("experts", "no experts", keys(n_routed_experts=0), ["n_routed_experts"]),
    ("experts", "a billion experts", keys(n_routed_experts=10 ** 9), ["n_routed_experts", "1000000000"]),
    ("experts", "as many experts and layers as are allowed", keys(n_routed_experts=4096, num_hidden_layers=4096, layer_types=...), ["model.layers"]),
    ("experts", "groups of experts", keys(n_group=2, topk_group=1), ["n_group"]),
    ("experts", "more dense layers than layers", keys(first_k_dense_replace=7), ["first_k_dense_replace", "7"]),
    ("experts", "negative dense layers", keys(first_k_dense_replace=-1), ["first_k_dense_replace"]),
    ("experts", "a scale of 0", keys(routed_scaling_factor=0.0), ["routed_scaling_factor"]),
    ("experts", "no shared experts", keys(n_shared_experts=None), ["mlp.shared_experts", "belongs to no parameter"]),
    ("experts", "a width of experts that is negative", keys(moe_intermediate_size=-7), ["moe_intermediate_size", "-7"]),
    ("qwen3-moe", "a dense layer in the middle", keys(mlp_only_layers=[1]), ["mlp_only_layers"]),
    ("qwen3-moe", "every second layer of experts", keys(decoder_sparse_step=2), ["decoder_sparse_step"]),
    ("qwen3-moe", "dense layers alone", keys(mlp_only_layers=[0, 1, 2]), ["mlp_only_layers"]),
    ("dense", "no heads", keys(num_attention_heads=0), ["num_attention_heads"]),
    ("dense", "negative heads", keys(num_attention_heads=-6), ["num_attention_heads"]),
    ("dense", "no heads of keys", keys(num_key_value_heads=-3), ["num_key_value_heads"]),
    ("dense", "heads of keys that do not divide", keys(num_key_value_heads=4), ["num_attention_heads", "num_key_value_heads"]),
    ("dense", "2^31 layers", keys(num_hidden_layers=1 << 31), ["num_hidden_layers", "2147483648"]),
    ("dense", "10^30 layers", keys(num_hidden_layers=10 ** 30), ["num_hidden_layers"]),
    ("dense", "half a layer", keys(num_hidden_layers=0.5), ["num_hidden_layers", "integer"]),
    ("dense", "an odd head_dim", keys(head_dim=7), ["head_dim", "7", "even"]),
    ("dense", "a negative head_dim", keys(head_dim=-6), ["head_dim"]),
    ("dense", "a width of 0", keys(hidden_size=0), ["hidden_size"]),
    ("dense", "a vocabulary of 2^40", keys(vocab_size=1 << 40), ["vocab_size"]),
    ("dense", "a context of 0", keys(max_position_embeddings=0), ["max_position_embeddings"]),
    ("dense", "an epsilon that is a text", keys(rms_norm_eps="1e-5"), ["rms_norm_eps"]),
    ("dense", "a negative epsilon", keys(rms_norm_eps=-1.0), ["rms_norm_eps"]),
    ("dense", "a theta of 0", keys(rope_parameters={"rope_type": "default", "rope_theta": 0.0}), ["rope_theta"]),
    ("dense", "an unknown scaling", keys(rope_parameters={"rope_type": "longrope", "rope_theta": 1e4}), ["rope_parameters", "longrope"]),
    ("dense", "a scaling of yarn without truncation", keys(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "truncate": False}),
     ["rope_parameters.truncate"]),
    ("dense", "a scaling without its keys", keys(rope_parameters={"rope_type": "llama3", "rope_theta": 1e4}), ["factor"]),
    ("dense", "a scaling that is a list", keys(rope_parameters=[1]), ["rope_parameters"]),
    ("dense", "biases in attention", keys(attention_bias=True), ["attention_bias"]),
    ("dense", "biases in feed-forward layers", keys(mlp_bias=True), ["mlp_bias"]),
    ("dense", "another activation", keys(hidden_act="gelu"), ["hidden_act", "gelu"]),
    ("dense", "attention to later tokens", keys(is_causal=False), ["is_causal"]),
    ("dense", "keys of single layers", keys(per_layer_config={"0": {"rms_norm_eps": 1.0}}), ["per_layer_config"]),
    ("dense", "a pointer of Git LFS", write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"), ["model.safetensors", "git lfs pull"]),
    ("dense", "a quantization", keys(quantization_config={"quant_method": "fp8"}), ["quantization_config"]),
    ("dense", "an unknown class", keys(architectures=["GPT2LMHeadModel"]), ["GPT2LMHeadModel"]),
    ("dense", "neither class nor type", keys(architectures=..., model_type=...), ["architectures"]),
    ("dense", "no sizes", keys(hidden_size=...), ["hidden_size"]),
    ("dense", "a config that is no JSON", write("config.json", "{"), ["config.json"]),
    ("dense", "a config that is a list", write("config.json", "[]"), ["config.json"]),
    ("dense", "an empty config", write("config.json", ""), ["config.json"]),
    ("dense", "a deep config", write("config.json", "[" * 100000), ["config.json"]),
    ("dense", "no config", lambda folder: os.remove(os.path.join(folder, "config.json")), ["config.json"]),
    ("shards", "layer_types of another length", keys(layer_types=["full_attention"]), ["layer_types"]),
    ("shards", "an unknown kind of layer", keys(layer_types=["full_attention", "linear_attention", "full_attention"]), ["layer_types", "linear_attention"]),
    ("shards", "a negative window", keys(use_sliding_window=True, sliding_window=-1, layer_types=["sliding_attention"] * 3), ["sliding_window"]),
]


def nan_in_shard(folder):
    path = os.path.join(folder, json.load(open(os.path.join(folder, "model.safetensors.index.json")))["weight_map"]["model.norm.weight"])
    t = load_file(path)
    t["model.norm.weight"][5] = float("nan")
    save_file(t, path, {"format": "pt"})


def refuses(label, command, words):
    """Runs a command and returns what is wrong with the way in which it fails."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60))  # noqa: E731
    begin = time.monotonic()
    p = subprocess.Popen([hf.GPUPIPE, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
    error = p.stderr.read()
    p.stdout.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    seconds, mb = time.monotonic() - begin, usage.ru_maxrss / 1024
    missing = [w for w in words if w not in error]
    if p.returncode not in (1, 2) or "goroutine" in error or missing or usage.ru_utime > 20 or mb > 600 or len(error) > 2000:
        return f"{label}: {command[0]}: exit status {p.returncode}, {seconds:.1f} s, {mb:.0f} MB, without {missing}: {error[:1500]}"
    return None


def main():
    data = os.path.join(hf.SCRATCH, "data")
    hf.write_data(data, SIZES["vocab_size"], SEQ, 1)
    for name, (kind, extra, shard) in MODELS.items():
        families.build(kind, {**SIZES, **extra}, 1).save_pretrained(os.path.join(hf.SCRATCH, name), max_shard_size=shard)
        hf.our_loss(os.path.join(hf.SCRATCH, name), data, SEQ)
    wrong = []
    for model, label, damage, words in DAMAGES:
        folder, run = os.path.join(hf.SCRATCH, "damaged"), os.path.join(hf.SCRATCH, "run")
        for old in (folder, run, folder + "-export"):
            shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(os.path.join(hf.SCRATCH, model), folder)
        damage(folder)
        with open(run + ".yaml", "w") as f:
            f.write(hf.RUN.format(seq=SEQ, folder=folder, data=data, microbatches=1, name="adamw", lr=0.003, run=run))
        found = [refuses(label, c, words) for c in (
            ["eval", folder, "--tokenizer", data, "--data", f"{data}/windows.bin", "--device", "cpu:0"], ["train", run + ".yaml"],
            ["export", folder, "--tokenizer", data, "--out", folder + "-export"])]
        if os.path.exists(folder + "-export"):
            found.append(f"{label}: export left a folder")
        found = [f for f in found if f]
        print(f"{model}, {label}: {found[0] if found else 'refused'}", flush=True)
        wrong += found
    if wrong:
        raise SystemExit(f"{len(wrong)} damages are not refused as they should be")
    print(f"{len(DAMAGES)} damages, each refused by eval, train and export with an error that names it")


if __name__ == "__main__":
    main()
