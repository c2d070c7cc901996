#!/usr/bin/env python3
"""Writes golden_trained.json: the merges that Hugging Face's tokenizers trains on a small text of many languages."""
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT = """The cat sat on the mat; the cat's mat isn't that flat. THE END'S near, we'll see: 1234567 and 89, 2026-11-23.
Der Bär hört den Käfer, der Käfer hört den Bären. Мама мыла раму, мама мыла окно. العربية لغة جميلة والعربية لغة قديمة
中文文本没有空格，中文文本很长。日本語のテキストです。日本語のテストです。 नमस्ते दुनिया नमस्ते
aaaa aaaaaaa aaaaaaaaaa ababab abababab 🙂🙂🙂 👩‍👩‍👧 e\u0301te\u0301 e\u0301t
func main() {\n\tfor i := 0; i < 10; i++ {\n\t\tfmt.Println(i, "cat")\n\t}\n}\n\n\nfunc f(x int) int { return x*x }\r\n"""
out = {"text": TEXT * 2, "merges": {}}
for name, pre in {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "gpt4": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
}.items():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    t.train_from_iterator([out["text"]], trainers.BpeTrainer(vocab_size=500, min_frequency=2, special_tokens=["<|endoftext|>", "<|pad|>"],
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    merges = json.loads(t.to_str())["model"]["merges"]
    out["merges"][name] = [m if isinstance(m, str) else " ".join(m) for m in merges]
(HERE / "golden_trained.json").write_text(json.dumps(out, ensure_ascii=False, indent=0) + "\n")
