"""Writes golden_framing.json: encodings by Hugging Face's tokenizers of texts that spell out special tokens.

Each tokenizer gets several post-processors. ids are with special tokens as tokens and as text; front and back are what
the post-processor adds to a single text.
"""
import json
import os

from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZERS = ["gpt2-style", "llama2-style", "llama3-style", "smollm2-style", "llama-unigram-style", "t5-style"]


def template(before, after):
    pieces = [{"SpecialToken": {"id": t, "type_id": 0}} for t, _ in before] + [{"Sequence": {"id": "A", "type_id": 0}}]
    pieces += [{"SpecialToken": {"id": t, "type_id": 0}} for t, _ in after]
    tokens = {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in before + after}
    pair = pieces + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": tokens}


def processors(a, b):
    """Post-processors by name; a and b are two special tokens and their numbers."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    return {
        "none": None,
        "byte level": byte_level,
        "begin": template([a], []),
        "begin and end": template([a], [b]),
        "end": template([], [b]),
        "two": template([a, b], []),
        "sequence": {"type": "Sequence", "processors": [byte_level, template([a], [])]},
        "bert": {"type": "BertProcessing", "sep": [b[0], b[1]], "cls": [a[0], a[1]]},
        "roberta": {"type": "RobertaProcessing", "sep": [b[0], b[1]], "cls": [a[0], a[1]], "trim_offsets": True, "add_prefix_space": False},
    }


def main():
    out = {}
    for name in TOKENIZERS:
        spec = json.load(open(os.path.join(HERE, name + ".json")))
        special = [(t["content"], t["id"]) for t in spec["added_tokens"] if t["special"]]
        a, b = special[0], special[-1]
        texts = [f"{a[0]}one {b[0]} two", f" {b[0]}{a[0]}", "plain", f"x{a[0]}\ny{b[0]}", a[0]]
        row = {"special": a[0], "texts": texts, "token": [], "text": [], "processors": []}
        tok = Tokenizer.from_str(json.dumps({**spec, "post_processor": None}))
        for as_text in (False, True):
            tok.encode_special_tokens = as_text
            row["text" if as_text else "token"] = [tok.encode(t, add_special_tokens=False).ids for t in texts]
        for kind, processor in processors(a, b).items():
            ids = Tokenizer.from_str(json.dumps({**spec, "post_processor": processor})).encode("plain").ids
            plain = row["token"][2]
            at = next(i for i in range(len(ids)) if ids[i:i + len(plain)] == plain)
            row["processors"].append({"name": kind, "post_processor": processor, "front": ids[:at], "back": ids[at + len(plain):]})
        out[name] = row
    with open(os.path.join(HERE, "golden_framing.json"), "w") as f:
        json.dump(out, f, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
