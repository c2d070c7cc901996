#!/usr/bin/env python3
"""Compares the speed of training a tokenizer and of encoding documents with Hugging Face's tokenizers, by turns, on an
idle CPU.

    texts.py GPUPIPE TEXT    (tokenizers 0.23.3)
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TURNS, COPIES, LINES, VOCABULARY = 5, 6, 8, 8192


def gpupipe_train(program):
    subprocess.run([program, "tokenizer", "train", "--vocab-size", str(VOCABULARY), "--pattern", "gpt2", "--out", tempfile.mkdtemp(dir="."),
                    "docs.jsonl"], check=True, capture_output=True)


def peer_train(documents):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(iter(documents), trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"],
                                                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))


def gpupipe_encode(program):
    subprocess.run([program, "data", "--tokenizer", "tok", "--out", tempfile.mkdtemp(dir="."), "docs.jsonl"], check=True, capture_output=True)


def peer_encode():
    t = Tokenizer.from_file("tok/tokenizer.json")
    with open("docs.jsonl") as f:
        t.encode_batch_fast([json.loads(line)["text"] for line in f])


def seconds(f, *arguments):
    begin = time.monotonic()
    f(*arguments)
    return time.monotonic() - begin


def main():
    program = os.path.abspath(sys.argv[1])
    with open(sys.argv[2]) as f:
        lines = [line for line in f.read().split("\n") if line]
    documents = ["\n".join(lines[i:i + LINES]) for i in range(0, len(lines), LINES)] * COPIES
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open("docs.jsonl", "w") as f:
            f.writelines(json.dumps({"text": d}) + "\n" for d in documents)
        subprocess.run([program, "tokenizer", "train", "--vocab-size", str(VOCABULARY), "--pattern", "gpt2", "--out", "tok", "docs.jsonl"], check=True,
                       capture_output=True)
        for name, ours, peer in [("train", lambda: gpupipe_train(program), lambda: peer_train(documents)),
                                 ("encode", lambda: gpupipe_encode(program), peer_encode)]:
            pairs = [(seconds(ours), seconds(peer)) for _ in range(TURNS)]
            a, b = (statistics.median(x) for x in zip(*pairs))
            print(f"{name}: gpupipe {a:.2f} s, tokenizers {b:.2f} s, {b / a:.1f} times as fast; ratios {min(y / x for x, y in pairs):.1f} to "
                  f"{max(y / x for x, y in pairs):.1f}", flush=True)
        os.chdir("/")


main()
