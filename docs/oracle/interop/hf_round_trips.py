#!/usr/bin/env python3
"""Carries models through gpupipe and back: what transformers saved, gpupipe exports with the same tensors, in every format.

Llama models with tied and untied embeddings, with grouped queries and in bfloat16 shards with an index. transformers' loss
of the export is within 3e-7, relative, of that of the original, and gpupipe's is within 2e-6. A second export is equal to
the first byte for byte.
"""
import filecmp
import os

import torch

import hf
from hf import families

SIZES = {"vocab_size": 251, "hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
         "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "tie_word_embeddings": False}
# Each row: what differs from SIZES, the dtype on disk, the largest shard, the dtype of the export.
CASES = {
    "tied": ({"tie_word_embeddings": True}, torch.float32, "5GB", "f32"),
    "untied": ({}, torch.float32, "5GB", "f32"),
    "grouped queries": ({"num_attention_heads": 6, "num_key_value_heads": 3}, torch.float32, "5GB", "f32"),
    "bfloat16 shards with an index": ({"num_key_value_heads": 2}, torch.bfloat16, "30KB", "bf16"),
    "float16": ({"tie_word_embeddings": True}, torch.float16, "5GB", "f16"),
}
SEQ = 40


def round_trip(name, keys, dtype, shard, export):
    folder, data = os.path.join(hf.SCRATCH, name.replace(" ", "-")), os.path.join(hf.SCRATCH, "data")
    tokens = hf.write_data(data, SIZES["vocab_size"], SEQ, 1)
    model = families.build("Llama", {**SIZES, **keys}, 1)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    if (shard != "5GB") != os.path.exists(os.path.join(folder, "model.safetensors.index.json")):
        raise hf.Failure(f"{name}: transformers wrote {os.listdir(folder)}")
    want = hf.losses_of(families.load(folder), tokens, SEQ)
    outs = [folder, folder + "-1", folder + "-2"]
    for a, b in zip(outs, outs[1:]):
        hf.gpupipe("export", a, "--tokenizer", data, "--dtype", export, "--out", b)
    if not all(filecmp.cmp(os.path.join(outs[1], f), os.path.join(outs[2], f), shallow=False) for f in os.listdir(outs[1])):
        raise hf.Failure(f"{name}: a second export differs from the first")
    back = families.load(outs[1])
    for key, p in families.load(folder).state_dict().items():
        if not torch.equal(p, back.state_dict()[key]):
            raise hf.Failure(f"{name}: tensor {key} differs")
    theirs = hf.relative(hf.losses_of(back, tokens, SEQ), want)
    ours = abs(hf.our_loss(outs[1], data, SEQ) * len(want) / sum(want) - 1)
    if not (theirs <= 3e-7 and ours <= 2e-6):
        raise hf.Failure(f"{name}: losses differ by {theirs:.1e} in transformers, {ours:.1e} in gpupipe")
    print(f"{name}: losses differ by {theirs:.1e} in transformers, {ours:.1e} in gpupipe")
    return theirs, ours


def main():
    results = [round_trip(name, *case) for name, case in CASES.items()]
    theirs, ours = (max(column) for column in zip(*results))
    print(f"{len(CASES)} models; the largest difference of a loss is {theirs:.1e} in transformers, {ours:.1e} in gpupipe")


if __name__ == "__main__":
    main()
