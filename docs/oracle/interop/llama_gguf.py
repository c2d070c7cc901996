#!/usr/bin/env python3
"""Compares GGUF files that gpupipe writes, as llama.cpp runs them, with gpupipe and transformers.

    llama_gguf.py [FAMILY …]

$GPUPIPE is the program, $SCRATCH a folder for files, and $NODE_PACKAGES a folder with npm's node-llama-cpp. A small Llama is trained by gpupipe: f32 must give its 20 greedy tokens
and its loss, f16 its perplexity within 0.1 %, q8_0 within 1 %. Small models of every family have random weights of
transformers: f32 must give their loss and greedy tokens. A file is read back by gpupipe as the model that it was. Standard
output is a table in Markdown and a summary; the exit status is 1 if a row fails.
"""
import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SIZES = dict(vocab_size=256, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             rms_norm_eps=1e-5, initializer_range=0.1, bos_token_id=None, eos_token_id=None, pad_token_id=None)
EXPERTS = dict(intermediate_size=96, num_experts=4, num_experts_per_tok=2)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
SIGMOID = dict(intermediate_size=96, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1,
               norm_topk_prob=True, routed_scaling_factor=1.5, n_group=1, topk_group=1)
FAMILIES = {
    "llama": ("Llama", dict(intermediate_size=96)),
    "llama3": ("Llama", dict(intermediate_size=96, tie_word_embeddings=True, rope_theta=500000.0, rope_scaling=LLAMA3)),
    "mistral": ("Mistral", dict(intermediate_size=96, head_dim=32, sliding_window=None)),
    "smollm3": ("SmolLM3", dict(intermediate_size=96, no_rope_layers=[1, 1, 1, 0], tie_word_embeddings=True)),
    "qwen3": ("Qwen3", dict(intermediate_size=96, head_dim=32)),
    "olmo2": ("Olmo2", dict(intermediate_size=96)),
    "olmo2-tied": ("Olmo2", dict(intermediate_size=96, tie_word_embeddings=True)),
    "olmo3": ("Olmo3", dict(intermediate_size=96, sliding_window=16)),
    "mixtral": ("Mixtral", dict(intermediate_size=96, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)),
    "olmoe": ("Olmoe", dict(EXPERTS, norm_topk_prob=False, num_key_value_heads=4)),
    "qwen3moe": ("Qwen3Moe", dict(EXPERTS, moe_intermediate_size=32, norm_topk_prob=True, head_dim=32)),
    "glm4moe": ("Glm4Moe", dict(SIGMOID, use_qk_norm=True, head_dim=16, partial_rotary_factor=1.0, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=1.0))),
    "dots1": ("Dots1", dict(SIGMOID, head_dim=16, sliding_window=None)),
}
PROMPT = list(b"In the beginning God created the heaven and the earth. And the")
rows = []


def row(name, what, got, want, ok):
    rows.append(ok)
    print(f"| {name} | {what} | {got} | {want} | {'ok' if ok else 'FAILED'} |", flush=True)


def close(name, what, got, want, tolerance):
    """A loss whose perplexity is within a part of another's."""
    error = abs(math.expm1(got - want))
    row(name, what, f"{got:.6f}", f"{want:.6f}, {100 * error:.4f} % of perplexity, at most {100 * tolerance:g} %", error <= tolerance)


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


class Tools:
    def __init__(self):
        self.gpupipe, self.folder = os.environ.get("GPUPIPE", ROOT / "bin/gpupipe"), Path(os.environ.get("SCRATCH", "/tmp"))

    def export(self, model, dtype):
        out = self.folder / f"{Path(model).name}-{dtype}.gguf"
        run(self.gpupipe, "export", model, "--format", "gguf", "--dtype", dtype, "--out", out, "--force", "--tokenizer", "bytes")
        return out

    def llama(self, file, **request):
        return json.loads(run("node", HERE / "llama_gguf.mjs", file, input=json.dumps(request)))


def trained(tools):
    """A model that gpupipe has trained, against gpupipe."""
    model, window = tools.folder / "trained", tools.folder / "window.txt"
    text = next(ROOT.glob("pipeline/train/**/text.txt"))
    window.write_bytes(text.read_bytes()[1000:1129])
    if not model.exists():
        run(tools.gpupipe, "train", "--set", "model={d_model: 64, n_layers: 4, n_heads: 4, n_kv_heads: 2, seq_len: 128, ffn: {d_ff: 160}}",
            "--set", f"data={{train: {text}, tokenizer: bytes}}", "--set", "train={steps: 200, batch_size: 8}", "--set", f"run.dir={model}")
    loss = json.loads(run(tools.gpupipe, "eval", model, "--data", window, "--batch-size", 1, "--json"))["loss"]
    text = json.loads(run(tools.gpupipe, "generate", model, "--prompt", bytes(PROMPT).decode(), "--tokens", 20, "--temperature", 0, "--json"))["text"]
    for dtype, tolerance in ("f32", 1e-5), ("f16", 1e-3), ("bf16", 1e-2), ("q8_0", 1e-2):
        got = tools.llama(tools.export(model, dtype), tokens=list(window.read_bytes()), prompt=PROMPT, count=20, text=window.read_text())
        close(f"trained, {dtype}", "loss", got["loss"], loss, tolerance)
        if dtype == "f32":
            row("trained, f32", "20 greedy tokens", bytes(got["greedy"]), text.encode()[-20:], bytes(got["greedy"]) == text.encode()[-20:])
            row("trained, f32", "ids of a text", len(got["ids"]), window.stat().st_size, got["ids"] == list(window.read_bytes()))


def families_equal(first, second):
    """Whether two files have the same tensors. Names of experts and tied heads may differ, so elements are compared."""
    from safetensors.numpy import load_file
    a, b = ({hash(x.tobytes()) for x in load_file(f).values()} for f in (first, second))
    return "all" if a <= b or b <= a else f"{len(a & b)} of {len(a)}"


def family(tools, name):
    import torch
    import transformers
    kind, sizes = FAMILIES[name]
    torch.manual_seed(1)
    model = getattr(transformers, kind + "ForCausalLM")(getattr(transformers, kind + "Config")(**{**SIZES, **sizes})).float().eval()
    for parameter in model.parameters():  # norms, too, are no ones
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1, 0.2)
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):
            buffer.normal_(0, 0.2)
    folder = tools.folder / name
    model.save_pretrained(folder)
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        loss = model(ids, labels=ids).loss.item()
        greedy = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None)[0, len(PROMPT):].tolist()
    got = tools.llama(tools.export(folder, "f32"), tokens=PROMPT, prompt=PROMPT, count=20)
    close(name, "loss", got["loss"], loss, 1e-5)
    same = 11 in greedy and got["greedy"] == greedy[:greedy.index(11) + 1] or got["greedy"] == greedy  # where llama.cpp ends
    row(name, "20 greedy tokens", got["greedy"][:6], greedy[:6], same)
    back = tools.folder / f"{name}-back"
    run(tools.gpupipe, "export", tools.export(folder, "f32"), "--out", back, "--force")
    kept = families_equal(folder / "model.safetensors", back / "model.safetensors")
    row(name, "tensors of the file, read back", kept, "all", kept == "all")
    close(f"{name}, q8_0", "loss", tools.llama(tools.export(folder, "q8_0"), tokens=PROMPT)["loss"], loss, 0.1)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("families", nargs="*", metavar="FAMILY", help=f"trained, {', '.join(FAMILIES)}; default: all")
    o = a.parse_args()
    tools = Tools()
    print("| model | what | llama.cpp | expected | |\n| --- | --- | --- | --- | --- |")
    for name in o.families or ["trained", *FAMILIES]:
        trained(tools) if name == "trained" else family(tools, name)
    print(f"{sum(rows)} of {len(rows)} rows agree")
    sys.exit(not all(rows))


if __name__ == "__main__":
    main()
