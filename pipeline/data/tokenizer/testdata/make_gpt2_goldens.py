#!/usr/bin/env python3
"""Writes golden_gpt2.json: random texts, and GPT-2's tokens of them by tiktoken.

    python make_gpt2_goldens.py     # with tiktoken from PyPI
"""
import base64
import gzip
import json
import os
import random

import tiktoken

FOLDER = os.path.dirname(os.path.abspath(__file__))
PIECES = ["Hello", "WORLD", " the", "don't", "I'll", "we've", " 12345", "3.14", " ", "  ", "\t", "\n", "\r\n", "\n\n", "=", "====", "(", ");", "_", "é", "e\u0301",
          "नमस्ते", " 漢字", "かな", "привет", "ſ", "😀", "👩‍👩‍👧", "\u00a0", "\u200b", "़", "عربي", "x" * 40, " " * 30, "ZZ", "0", "'", "'s", "'S"]


def main():
    with gzip.open(os.path.join(FOLDER, "../gpt2.tiktoken.gz")) as f:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in f)}
    gpt2 = tiktoken.Encoding("gpt2", pat_str=r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
                             mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
    random.seed(1)
    texts = ["".join(random.choices(PIECES, k=random.randint(1, 24))) for _ in range(120)]
    with open(os.path.join(FOLDER, "golden_gpt2.json"), "w") as f:
        json.dump([{"text": t, "ids": gpt2.encode(t, allowed_special="all")} for t in texts], f, separators=(",", ":"))


if __name__ == "__main__":
    main()
