#!/usr/bin/env python3
"""Compares folders of models as people have them with transformers: keys that tools add to config.json, other heads of tied models,
names of tensors with prefixes.

    hf_found.py [--draws N] [--seed N] [--class NAME…]

For each class it draws a shape, and changes of the folder. gpupipe's mean loss of 4 windows equals transformers', within 2e-6, or
gpupipe refuses the folder with exit status 2 and names the key. Of a folder that transformers cannot load, gpupipe may do either.
"""
import argparse
import json
import os
import random
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file

import hf
from hf import families
from hf_shapes import CLASSES

TOLERANCE = 2e-6  # relative
# Keys of some class or tool, with values that would change numbers where they are read.
KEYS = {
    "attention_bias": [True], "mlp_bias": [True], "clip_qkv": [0.1], "attention_multiplier": [0.1], "embedding_multiplier": [12.0],
    "residual_multiplier": [0.2], "logits_scaling": [8.0], "final_logit_softcapping": [1.0], "attn_logit_softcapping": [1.0], "query_pre_attn_scalar": [7],
    "partial_rotary_factor": [0.5, 1.0], "rope_theta": [77.0, None], "original_max_position_embeddings": [8], "use_sliding_window": [True, False],
    "sliding_window": [3, None, 100000], "max_window_layers": [1], "attention_chunk_size": [4, None], "is_causal": [False, True],
    "n_group": [1, 2], "topk_group": [1, 2], "scoring_func": ["sigmoid"], "norm_topk_prob": [True], "use_qk_norm": [True],
    "rope_scaling": [None, {}, {"type": "linear", "factor": 3.0}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "finetuned": True},
                     {"type": "dynamic", "factor": 2.0}, {"rope_type": "default", "mrope_section": [1, 1]}],
    "hidden_act": ["swish", "gelu", "silu"], "tie_word_embeddings": [None], "head_dim": [None], "quantization_config": [None],
    "unsloth_fixed": [True], "auto_map": [{"AutoConfig": "x.Y"}], "attention_dropout": [0.3], "initializer_range": [1.0], "torch_dtype": ["bfloat16"],
    "pretraining_tp": [1, 2], "use_cache": [False], "transformers_version": ["5.99.0"], "rope_interleaved": [True], "tokenizer_class": ["X"],
    "_name_or_path": ["x"], "id2label": [{"0": "a"}], "layer_types": ["full", "local"],
}


def change_keys(r, folder):
    """Gives config.json one or two keys, and says which."""
    path = os.path.join(folder, "config.json")
    c = json.load(open(path))
    done = {}
    for key in r.sample(sorted(KEYS), r.choice([1, 1, 2])):
        v = r.choice(KEYS[key])
        if key == "layer_types":
            v = ["full_attention" if v == "full" else "sliding_attention"] * c["num_hidden_layers"]
        c[key] = done[key] = v
    json.dump(c, open(path, "w"))
    return done


def change_tensors(r, folder):
    """Renames tensors, or gives a model with tied embeddings a head, and says what transformers reads: None for the folder itself."""
    path = os.path.join(folder, "model.safetensors")
    t = load_file(path)
    tied = json.load(open(os.path.join(folder, "config.json"))).get("tie_word_embeddings")
    prefix = r.choice(["module.", "_orig_mod.", "student.", "module._orig_mod.", None, None])
    if prefix:
        save_file({prefix + k: v for k, v in t.items()}, path, {"format": "pt"})
        return "prefix " + prefix
    if tied:
        head = t["model.embed_tokens.weight"].clone()
        if r.random() < 0.7:
            head[r.randrange(len(head))] += 1
        save_file({**t, "lm_head.weight": head}, path, {"format": "pt"})
        return "a head"
    return None


def their_loss(folder, tokens, seq):
    """transformers' loss, or why it has none."""
    try:
        model = families.load(folder)
        if str(model.dtype) != "torch.float32":
            model = model.float()
        losses = hf.losses_of(model, tokens, seq)
        return sum(losses) / len(losses)
    except Exception as e:  # whatever transformers raises
        return f"{type(e).__name__}: {e}"


def check(name, number, seed):
    """Compares one draw. Returns what happened: equal, refused, or unloadable for transformers."""
    r = random.Random(f"{name} {number} {seed}")
    folder = os.path.join(hf.SCRATCH, f"found-{name}-{number}")
    shutil.rmtree(folder, ignore_errors=True)
    keys, seq = CLASSES[name](r)
    families.build(name, keys, number).save_pretrained(folder)
    tokens = hf.write_data(folder + "-data", keys["vocab_size"], seq, number)
    original = folder + "-original"
    shutil.rmtree(original, ignore_errors=True)
    changed = change_keys(r, folder) if r.random() < 0.75 else {}
    shutil.copytree(folder, original)
    renamed = change_tensors(r, folder)
    want = their_loss(original if renamed and renamed.startswith("prefix") else folder, tokens, seq)
    status, errors = hf.gpupipe("eval", folder, "--tokenizer", folder + "-data", "--data", f"{folder}-data/windows.bin", "--seq-len", seq, "--batch-size",
                                hf.WINDOWS, "--device", "cpu:0", "--json", check=False)
    what = f"{name} {number}: {changed}, {renamed}: "
    if status == 2:
        if not isinstance(want, str) and not any(key in errors for key in [*changed, "rope_parameters"]):
            raise hf.Failure(f"{what}refused without the key: {errors.strip()}; transformers has {want}")
        return "refused"
    if status != 0:
        raise hf.Failure(f"{what}exit status {status}: {errors.strip()[-500:]}")
    if isinstance(want, str):
        return "not loaded by transformers"
    got = hf.our_loss(folder, folder + "-data", seq)
    if not abs(got - want) <= TOLERANCE * abs(want):
        raise hf.Failure(f"{what}loss {got}, transformers has {want}, folder {folder}")
    return "equal"


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--draws", type=int, default=4, help="folders of a class")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--class", dest="classes", nargs="+", default=list(CLASSES))
    a.add_argument("--keep-going", action="store_true", help="go on after a failure")
    a = a.parse_args()
    counts, failures = {}, 0
    for name in a.classes:
        for number in range(a.draws):
            try:
                outcome = check(name, number, a.seed)
                counts[outcome] = counts.get(outcome, 0) + 1
            except hf.Failure as e:
                print("FAIL", e, flush=True)
                failures += 1
                if not a.keep_going:
                    sys.exit(1)
    print(f"{len(a.classes)} classes, {a.draws} folders of each: {', '.join(f'{n} {k}' for k, n in sorted(counts.items()))}")
    sys.exit(failures > 0)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
