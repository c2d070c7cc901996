#!/usr/bin/env python3
"""Compares tokenizers that gpupipe trains with Hugging Face's: merges, and ids of 1 MB of text in many languages.

$GPUPIPE is the program, $SCRATCH a folder for files. The last line of the output is a summary.
"""
import json
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

GPUPIPE, SCRATCH = os.environ.get("GPUPIPE", "gpupipe"), Path(os.environ.get("SCRATCH", "/tmp"))
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {"gpt2": None, "gpt4": CONTRACTIONS % "{1,3}", "qwen2": CONTRACTIONS % ""}
SIZE, VOCABULARY = 1_000_000, 3000
WORDS = {
    "letters": ["the", "cat's", "I'LL", "WE'RE", "naïve", "Straße", "ÉCOLE", "e\u0301te\u0301", "a\u0308\u0323", "ﬁne", "Ǆ", "ß"],
    "cyrillic": ["мама", "мыла", "раму", "ёж", "Щука", "їжак"],
    "arabic": ["العربية", "لُغَةٌ", "جميلة", "مَرْحَبًا", "٣٤٥", "۱۲۳"],
    "cjk": ["中文文本", "日本語のテキスト", "한국어", "，", "。", "カタカナ", "𠮷野家"],
    "indic": ["नमस्ते", "दुनिया", "தமிழ்", "ไทยภาษา", "မြန်မာ"],
    "emoji": ["🙂", "👩\u200d👩\u200d👧", "🏳️\u200d🌈", "🇩🇪", "👍🏽", "❤️"],
    "numbers": ["1", "12", "123", "1234567", "3.14159", "½", "Ⅷ", "0x1F", "1e-9", "²"],
    "code": ["if (x == 0) {", "return x*x;", "}", "// note", "/* … */", "x += y;", "__init__", "a->b", "<div class=\"c\">", "\\\\n", "$HOME"],
    "space": ["\n", "\n\n", "\t", "\r\n", "   ", "\u00a0", "\u3000", " \n ", "\u2028", "\x0b"],
    "odd": ["\u200b", "\ufeff", "\u202e", "\ue000", "\U000e0041", "'", "''s", "'x", "--", "…", "\x7f", "\x01"],
}


def mixed_text(seed):
    r, out, size = random.Random(seed), [], 0
    kinds = list(WORDS)
    while size < SIZE:
        kind = r.choice(kinds)
        for _ in range(r.randint(1, 12)):
            word = r.choice(WORDS[kind]) if r.random() < 0.97 else chr(r.choice([r.randint(0x21, 0x2fff), r.randint(0x3000, 0xd7ff), r.randint(0x10000, 0x1ffff)]))
            out.append(word + r.choice(["", " ", " ", " ", "  ", "\n"]))
            size += len(out[-1].encode())
    return "".join(out)


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def our_ids(tokenizer, text):
    """The ids of a text, from a shard. The end of the document follows them."""
    out = SCRATCH / f"shards-{Path(tokenizer).name}-{text.stem}"
    run(GPUPIPE, "data", "--tokenizer", tokenizer, "--out", out, text)
    shard = (out / "train_000001.bin").read_bytes()
    count = struct.unpack_from("<3i", shard)[2]
    return list(struct.unpack_from(f"<{count}H", shard, 1024))[:-1]


def trained_by_hugging_face(pattern, text):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if PATTERNS[pattern]:
        split = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
        t.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, min_frequency=2, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    begin = time.monotonic()
    t.train_from_iterator([text], trainer)
    return json.loads(t.to_str()), time.monotonic() - begin


def merges(description):
    return [m if isinstance(m, str) else " ".join(m) for m in description["model"]["merges"]]


def main():
    corpus, held_out = SCRATCH / "corpus.txt", SCRATCH / "held-out.txt"
    corpus.write_text(mixed_text(1), encoding="utf-8", newline="")
    held_out.write_text(mixed_text(2), encoding="utf-8", newline="")
    speeds = []
    for pattern in PATTERNS:
        out = SCRATCH / f"tok-{pattern}"
        begin = time.monotonic()
        run(GPUPIPE, "tokenizer", "train", "--vocab-size", VOCABULARY, "--pattern", pattern, "--out", out, corpus)
        ours = time.monotonic() - begin
        theirs, seconds = trained_by_hugging_face(pattern, corpus.read_bytes().decode())
        speeds.append(seconds / ours)
        mine = json.loads((out / "tokenizer.json").read_text())
        if merges(mine) != merges(theirs) or mine["model"]["vocab"] != theirs["model"]["vocab"]:
            sys.exit(f"{pattern}: the merges or the vocabulary differ from those of Hugging Face's trainer")
        hugging_face = Tokenizer.from_file(str(out / "tokenizer.json"))
        for text in corpus, held_out:
            want = hugging_face.encode(text.read_bytes().decode(), add_special_tokens=False).ids
            got = our_ids(out, text)
            if got != want:
                at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
                sys.exit(f"{pattern}: ids of {text.name} differ at token {at}: {got[at:at + 5]}, expected {want[at:at + 5]}")
            if hugging_face.decode(got) != text.read_bytes().decode():
                sys.exit(f"{pattern}: {text.name} does not come back")
            print(f"{pattern}: {len(want)} ids of {text.stat().st_size} bytes are equal")
        run(GPUPIPE, "tokenizer", "check", out, "--text", held_out)
    print(f"{len(PATTERNS)} tokenizers of {VOCABULARY} tokens have equal merges, and equal ids of 2 texts of 1 MB; training is {min(speeds):.1f} times as fast or faster")


if __name__ == "__main__":
    main()
