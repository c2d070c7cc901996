#!/usr/bin/env python3
"""Compares every class of transformers with gpupipe, on random models of odd shapes.

    hf_shapes.py [--draws N] [--seed N] [--class NAME…] [--keep]

For each class it draws shapes. transformers saves a model of random weights, in one of the spellings that config.json has.
Then it compares: the mean loss of 4 windows, within 2e-6; 20 greedy tokens, which gpupipe generates with a cache and
transformers with and without; of the first draw the losses of 20 training steps under AdamW and Muon, within 2e-5; and the
loss and the tokens of gpupipe's export as transformers loads it.
"""
import argparse
import json
import os
import random
import shutil
import sys
import zlib

import torch

import hf
from hf import families

LOSS, TRAINING = 2e-6, 2e-5  # tolerances, relative
NOISE = 5e-6  # the most by which losses of training in f32 and f64 may differ in transformers


def rope(r, theta=10000.0, scaled=True):
    if scaled and r.random() < 0.4:
        if r.random() < 0.5:
            return {"rope_theta": theta, "rope_type": "yarn", "factor": r.choice([2.0, 8.0, 1.5]), "original_max_position_embeddings": r.choice([8, 16, 24]),
                    **r.choice([{}, {"beta_fast": 2.0, "beta_slow": 0.5}, {"attention_factor": 1.3}, {"mscale": 0.7, "mscale_all_dim": 1.1}])}
        return {"rope_theta": theta, "rope_type": "llama3", "factor": r.choice([2.0, 8.0, 3.5]), "low_freq_factor": 1.0,
                "high_freq_factor": r.choice([2.0, 4.0]), "original_max_position_embeddings": r.choice([8, 16, 24])}
    return {"rope_theta": theta, "rope_type": "default"}


def sizes(r, derived=False, divisible=False):
    """The sizes that all classes have. derived: head_dim is hidden_size/num_attention_heads."""
    heads, kv = r.choice([(6, 3), (9, 3), (3, 3), (3, 1), (5, 1), (6, 2), (1, 1), (7, 7), (12, 3), (4, 2)])
    head_dim = r.choice([10, 18, 20, 24, 36, 72, 6, 2, 14, 34])
    width = heads * head_dim if derived else heads * r.choice([1, 3, 5]) if divisible else r.choice([17, 21, 33, 50, 5])
    seq = r.choice([17, 33, 40, 70, 9])
    return {"vocab_size": r.choice([251, 47, 97, 1003, 13]), "hidden_size": width, "intermediate_size": r.choice([33, 100, 7, 1, 65]),
            "num_hidden_layers": r.randint(1, 5), "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head_dim,
            "max_position_embeddings": max(seq, hf.PROMPT + hf.NEW) + r.choice([0, 3, 64]), "rms_norm_eps": r.choice([1e-5, 1e-6, 1e-3]), "bos_token_id": None,
            "eos_token_id": None, "pad_token_id": r.choice([None, None, 0, 1, 12]), "tie_word_embeddings": r.random() < 0.5,
            "rope_parameters": rope(r, r.choice([100.0, 10000.0, 5e5, 1e6]))}, seq


def window(r):
    return r.choice([1, 3, 5, 7, 16, 100000])


def layer_types(r, c):
    return [r.choice(["sliding_attention", "full_attention"]) for _ in range(c["num_hidden_layers"])]


def experts(r):
    """The number of experts, and how many of them a token has."""
    return r.choice([(1, 1), (3, 3), (5, 2), (7, 1), (7, 7), (3, 2), (5, 4), (12, 3), (2, 1)])


def llama(r):
    c, seq = sizes(r, divisible=True)
    return c, seq


def mistral(r):
    c, seq = sizes(r)
    return {**c, "sliding_window": r.choice([None, window(r), window(r)])}, seq


def qwen3(r):
    c, seq = sizes(r)
    if r.random() < 0.6:
        c.update(use_sliding_window=True, sliding_window=window(r), max_window_layers=r.randint(0, 3))
        if r.random() < 0.6:
            c.update(layer_types=layer_types(r, c))
    return c, seq


def olmo2(r):
    return sizes(r, derived=r.random() < 0.6)


def olmo3(r):
    c, seq = sizes(r, derived=r.random() < 0.6)
    local = c["rope_parameters"] if r.random() < 0.5 else {"rope_theta": c["rope_parameters"]["rope_theta"], "rope_type": "default"}
    c["rope_parameters"] = {"full_attention": c["rope_parameters"], "sliding_attention": local}
    c["sliding_window"] = window(r)
    if r.random() < 0.6:
        c["layer_types"] = layer_types(r, c)
    return c, seq


def smollm3(r):
    c, seq = sizes(r, derived=r.random() < 0.6)
    c[r.choice(["no_rope_layers", "x"])] = [r.randint(0, 1) for _ in range(c["num_hidden_layers"])]
    c["no_rope_layer_interval"] = r.choice([1, 2, 3, 4])
    if r.random() < 0.6:
        c.update(use_sliding_window=True, sliding_window=window(r))
        if r.random() < 0.5:
            c.update(layer_types=layer_types(r, c))
    return {k: v for k, v in c.items() if k != "x"}, seq


def nanochat(r):
    c, seq = sizes(r, derived=r.random() < 0.6)
    return {**c, "final_logit_softcapping": r.choice([None, 15.0, 3.0, 0.5])}, seq


def mixtral(r):
    c, seq = sizes(r)
    e, k = experts(r)
    return {**c, "num_local_experts": e, "num_experts_per_tok": k, "sliding_window": r.choice([None, window(r)])}, seq


def olmoe(r):
    c, seq = sizes(r, derived=r.random() < 0.6)
    e, k = experts(r)
    return {**c, "num_experts": e, "num_experts_per_tok": k, "norm_topk_prob": r.random() < 0.5}, seq


def qwen3_moe(r):
    c, seq = sizes(r)
    e, k = experts(r)
    c.update(num_experts=e, num_experts_per_tok=k, norm_topk_prob=r.random() < 0.5, moe_intermediate_size=r.choice([33, 7, 1, 12]))
    c["mlp_only_layers"] = list(range(r.randint(0, c["num_hidden_layers"] - 1)))
    if r.random() < 0.5:
        c.update(use_sliding_window=True, sliding_window=window(r))
    return c, seq


def deepseek(r):
    """What Dots1 and Glm4Moe have in common."""
    c, seq = sizes(r)
    e, k = r.choice([(3, 3), (5, 2), (7, 1), (7, 7), (3, 2), (5, 4), (12, 3), (2, 1)])
    c.update(n_routed_experts=e, num_experts_per_tok=k, n_shared_experts=r.randint(0, 3), norm_topk_prob=r.random() < 0.5,
             moe_intermediate_size=r.choice([33, 7, 1, 12]), routed_scaling_factor=r.choice([1.0, 2.5, 0.3]),
             first_k_dense_replace=r.randint(0, c["num_hidden_layers"] - 1))
    return c, seq


def dots1(r):
    c, seq = deepseek(r)
    c["sliding_window"] = r.choice([None, window(r)])
    if c["sliding_window"]:
        c["max_window_layers"] = r.randint(0, 3)
        if r.random() < 0.5:
            c["layer_types"] = layer_types(r, c)
    return c, seq


def glm4_moe(r):
    c, seq = deepseek(r)
    c["rope_parameters"]["partial_rotary_factor"] = 1.0
    return {**c, "use_qk_norm": r.random() < 0.5, "num_mtp_layers": 0}, seq


CLASSES = {"Llama": llama, "Mistral": mistral, "Qwen3": qwen3, "Olmo2": olmo2, "Olmo3": olmo3, "SmolLM3": smollm3, "NanoChat": nanochat,
           "Mixtral": mixtral, "Olmoe": olmoe, "Qwen3Moe": qwen3_moe, "Dots1": dots1, "Glm4Moe": glm4_moe}


def respell(r, folder, name):
    """Writes config.json as another version of transformers or a careless tool would: the model stays the same."""
    path = os.path.join(folder, "config.json")
    c = json.load(open(path))
    done = []

    def change(label, possible, apply):
        if possible and r.random() < 0.4:
            apply()
            done.append(label)

    nested = c.get("rope_parameters", {})
    flat = nested.get("full_attention", nested)

    def top_level():
        c.pop("rope_parameters")
        c["rope_theta"] = flat.pop("rope_theta")
        if "partial_rotary_factor" in flat:
            c["partial_rotary_factor"] = flat.pop("partial_rotary_factor")
        c["rope_scaling"] = None if flat["rope_type"] == "default" else flat
        if r.random() < 0.5 and c["rope_scaling"]:
            c["rope_scaling"]["type"] = c["rope_scaling"].pop("rope_type")

    # Of OLMo 3 transformers gives rope_theta to the layers without a window alone.
    change("rope_theta", name != "Olmo3" or flat["rope_theta"] == 5e5 and nested["sliding_attention"]["rope_type"] == "default", top_level)
    change("torch_dtype", True, lambda: c.update(torch_dtype=c.pop("dtype")))
    derived = c.get("head_dim") == c["hidden_size"] // c["num_attention_heads"]
    change("head_dim null", derived and name in ("Llama", "Mistral", "Mixtral"), lambda: c.update(head_dim=None))
    change("no head_dim", "head_dim" in c and derived and name != "Qwen3", lambda: c.pop("head_dim"))
    change("no kv heads", c["num_key_value_heads"] == c["num_attention_heads"] and name in ("Llama", "Olmo2", "Olmo3", "NanoChat", "Olmoe"),
           lambda: c.pop("num_key_value_heads"))
    change("kv heads null", c.get("num_key_value_heads") == c["num_attention_heads"] and name not in ("Mistral", "Mixtral", "Qwen3Moe", "Glm4Moe"),
           lambda: c.update(num_key_value_heads=None))
    change("no tie_word_embeddings", c.get("tie_word_embeddings") == (name == "SmolLM3"), lambda: c.pop("tie_word_embeddings"))
    change("no architectures", True, lambda: c.pop("architectures"))
    change("old version", True, lambda: c.update(transformers_version="4.51.0", _name_or_path="x"))
    change("no eps", c["rms_norm_eps"] == {"Olmo2": 1e-5, "Olmo3": 1e-5, "Olmoe": 1e-5, "Mixtral": 1e-5, "Glm4Moe": 1e-5}.get(name, 1e-6),
           lambda: c.pop("rms_norm_eps"))
    json.dump(c, open(path, "w"))
    return done


def save(model, folder, r):
    """Saves a model in one of several ways, and says which."""
    half = r.random() < 0.5
    if half:
        model = model.to(torch.bfloat16)
    shards = r.random() < 0.4
    model.save_pretrained(folder, **({"max_shard_size": "20KB"} if shards else {}))
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(folder, extra)):
            os.remove(os.path.join(folder, extra))
    return ("bf16" if half else "f32") + (" shards" if shards else "")


class Model:
    """A drawn model in a folder, with transformers' losses and tokens. Draws again while a tie would make these a matter of rounding:
    of tokens, or of experts, also in training."""

    def __init__(self, name, folder, number, seed, trains):
        self.name, self.folder, self.data = name, folder, folder + "-data"
        for attempt in range(20):
            r = random.Random(f"{name} {number} {seed} {attempt}")
            keys, self.seq = CLASSES[name](r)
            shutil.rmtree(folder, ignore_errors=True)
            saved = save(families.build(name, keys, zlib.crc32(name.encode()) % 1000 + attempt), folder, r)
            self.notes = [saved, *respell(r, folder, name)]
            self.keys = {k: v for k, v in keys.items() if k not in ("bos_token_id", "eos_token_id")}
            self.tokens = hf.write_data(self.data, keys["vocab_size"], self.seq, attempt)
            model = families.load(folder)
            self.routing = families.routing_margin(model, lambda: self.describe(model))
            if self.margin > 1e-3 and (self.routing is None or self.routing > 3e-5) and self.learns(trains):
                return
        raise hf.Failure(f"{name} {number}: no draw without ties: margins {self.margin}, {self.routing}")

    def describe(self, model):
        self.losses = hf.losses_of(model, self.tokens, self.seq)
        with torch.no_grad():
            self.greedy, self.margin = families.greedy(model, self.tokens[:hf.PROMPT].tolist())

    def same(self, what, folder):
        """Compares gpupipe's results for a folder with transformers'."""
        got, want = hf.our_loss(folder, self.data, self.seq), sum(self.losses) / len(self.losses)
        if not abs(got - want) <= LOSS * want:
            raise hf.Failure(f"{what}: loss {got}, transformers has {want}: {(got - want) / want:.1e}")
        tokens = hf.our_tokens(folder, self.data, self.tokens)
        if tokens != self.greedy:
            raise hf.Failure(f"{what}: greedy tokens {tokens}, transformers has {self.greedy}")
        return abs(got - want) / want

    def learns(self, optimizers):
        """Computes transformers' losses of training, and returns whether they are the same in f32 and f64."""
        self.training = {}
        for options in optimizers:
            f32, f64 = (families.train(families.load(self.folder, dtype), self.tokens, options, self.seq) for dtype in (torch.float32, torch.float64))
            self.training[options["name"]] = f32
            if hf.relative(f32, f64) > NOISE:
                return False
        return True

    def trains(self, options, microbatches):
        got, want = hf.our_training(self.folder, self.data, self.seq, options, microbatches), self.training[options["name"]]
        difference = hf.relative(got, want)
        if not difference <= TRAINING:
            raise hf.Failure(f"{options['name']}: losses differ by {difference:.1e}\n{got}\n{want}")
        return difference

    def exports(self):
        out = self.folder + "-export"
        hf.gpupipe("export", self.folder, "--tokenizer", self.data, "--out", out, "--force")
        model = families.load(out)
        losses = hf.losses_of(model, self.tokens, self.seq)
        if not hf.relative(losses, self.losses) <= LOSS:
            raise hf.Failure(f"export: transformers' losses {losses}, {self.losses} of its own")
        with torch.no_grad():
            greedy, _ = families.greedy(model, self.tokens[:hf.PROMPT].tolist())
        if greedy != self.greedy:
            raise hf.Failure(f"export: transformers' greedy tokens {greedy}, {self.greedy} of its own")


def check(name, number, seed, trains):
    """Compares one draw, and returns the largest differences."""
    folder = os.path.join(hf.SCRATCH, f"{name}-{number}")
    optimizers = (families.ADAMW, families.MUON) if trains else ()
    m = Model(name, folder, number, seed, optimizers)
    result = {"loss": 0.0}
    try:
        result["loss"] = m.same("import", folder)
        m.exports()
        for options in optimizers:
            result[options["name"]] = m.trains(options, 1 + number % 2)
    except hf.Failure as e:
        raise hf.Failure(f"{name} {number}: {e}\n  {m.keys}, seq {m.seq}, {', '.join(m.notes)}, folder {folder}") from None
    print(f"{name} {number}: {', '.join(f'{k} {v:.1e}' for k, v in result.items())}; margins {m.margin:.1e}, {m.routing}; {', '.join(m.notes)}", flush=True)
    return result


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--draws", type=int, default=4, help="shapes of a class")
    a.add_argument("--train", type=int, default=1, help="shapes of a class that train, too")
    a.add_argument("--first", type=int, default=0, help="number of the first draw")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--class", dest="classes", nargs="+", default=list(CLASSES))
    a.add_argument("--keep-going", action="store_true", help="go on after a failure")
    a = a.parse_args()
    worst, failures = {}, 0
    for name in a.classes:
        for number in range(a.first, a.first + a.draws):
            try:
                for key, v in check(name, number, a.seed, number < a.first + a.train).items():
                    worst[key] = max(worst.get(key, 0.0), v)
            except (hf.Failure, AssertionError) as e:
                print("FAIL", e, flush=True)
                failures += 1
                if not a.keep_going:
                    sys.exit(1)
    print(f"{len(a.classes)} classes, {a.draws} shapes of each; largest differences: {', '.join(f'{k} {v:.1e}' for k, v in worst.items())}")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
