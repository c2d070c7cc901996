#!/usr/bin/env python3
"""Compares the speed of gpupipe generate on cpu:0 with llama.cpp's: `make peers-generate`.

    generate.py [--turns N] [--tokens N] [--threads N]

Both generate greedily with the same weights in f32, those of a smollm2-135m that was not trained, and take turns. All
have the same cores and the same number of threads. Standard output is a table in Markdown.
"""
import argparse
import json
import os
import statistics
import subprocess

import gguf
import numpy as np
from safetensors.numpy import load_file

import peers

NAME, PROMPT = "smollm2-135m", "In the beginning"
PACKAGES = peers.BUILD / "llama"
TENSORS = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
           "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
           "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
           "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}


def interleaved(x, heads):
    """Rows of a projection in llama.cpp's order: the two halves of a head alternate."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)


def write_gguf(folder, path):
    """Writes a folder in Hugging Face's Llama layout as GGUF. The tokens are bytes, then numbers."""
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads, vocab = config["num_attention_heads"], config["num_key_value_heads"], config["vocab_size"]
    w = gguf.GGUFWriter(path, "llama")
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_vocab_size(vocab)
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(config["rope_theta"])
    w.add_rope_dimension_count(config["hidden_size"] // heads)
    kinds, special = gguf.TokenType, [b"<unk>", b"<s>", b"</s>"]
    tokens = special + [b"<0x%02X>" % i for i in range(256)]
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens + [b"%d" % i for i in range(len(tokens), vocab)])
    w.add_token_types(types + [kinds.NORMAL] * (vocab - len(types)))
    w.add_token_scores([0.0] * vocab)
    for name, x in load_file(folder / "model.safetensors").items():
        words = name.removesuffix(".weight").removeprefix("model.").split(".")
        layer = f"blk.{words[1]}." if words[0] == "layers" else ""
        own = ".".join(words[2:] if layer else words)
        if own in ("self_attn.q_proj", "self_attn.k_proj"):
            x = interleaved(x, heads if own == "self_attn.q_proj" else kv_heads)
        w.add_tensor(f"{layer}{TENSORS[own]}.weight", np.ascontiguousarray(x))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def rate(command):
    out = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout
    return json.loads(out)["tokens_per_s"]


def main():
    cores = sorted(os.sched_getaffinity(0))
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--turns", type=int, default=5)
    a.add_argument("--tokens", type=int, default=128)
    a.add_argument("--threads", type=int, default=len(cores), help="of each peer, each on a core")
    o = a.parse_args()
    os.sched_setaffinity(0, cores[:o.threads])
    os.environ["NODE_PACKAGES"] = str(PACKAGES)
    weights = peers.make_files(NAME)
    model = peers.BUILD / NAME / "model.gguf"
    write_gguf(weights, model)
    commands = {
        "llama.cpp, f32": ["node", peers.HERE / "llama_peer.mjs", model, PROMPT, o.tokens, o.threads],
        "gpupipe": [peers.GPUPIPE, "generate", weights, "--device", "cpu:0", "--tokenizer", "bytes", "--prompt", PROMPT,
                    "--tokens", o.tokens, "--temperature", 0, "--json"],
    }
    rates = {peer: [] for peer in commands}
    rate(commands["gpupipe"])  # compiles the kernels
    for turn in range(o.turns):
        for peer, command in commands.items():
            rates[peer].append(rate(command))
        peers.say(f"turn {turn + 1} of {o.turns}: " + ", ".join(f"{p} {r[-1]:.1f}" for p, r in rates.items()))
    reference = statistics.median(rates["llama.cpp, f32"])
    print("| peer | tokens/s: min | median | max | to llama.cpp |\n| --- | --- | --- | --- | --- |")
    for peer, r in rates.items():
        print(f"| {peer} | {min(r):.1f} | {statistics.median(r):.1f} | {max(r):.1f} | {statistics.median(r) / reference:.2f} |")


if __name__ == "__main__":
    main()
