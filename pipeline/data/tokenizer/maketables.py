#!/usr/bin/env python3
"""Writes tables.json.gz: what Hugging Face's tokenizers knows of each character. maketables.py TOKENIZERS/src

It asks the Python package tokenizers 0.23.3, for a release is built with the tables of several versions of Unicode. The
scripts are read from the source of the crate.
"""
import gzip
import json
import re
import sys
from pathlib import Path

from tokenizers import normalizers, pre_tokenizers

CHARACTERS = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]


def ranges(member):
    out = []
    for c in CHARACTERS:
        if member(chr(c)):
            if out and out[-1][1] == c - 1:
                out[-1][1] = c
            else:
                out.append([c, c])
    return out


def bert(**on):
    keys = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    return normalizers.BertNormalizer(**{k: on.get(k, False) for k in keys}).normalize_str


def measure():
    digits, punctuation, whitespace = pre_tokenizers.Digits(True), pre_tokenizers.Punctuation(), pre_tokenizers.Whitespace()
    lower, nfkd = normalizers.Lowercase().normalize_str, normalizers.NFKD().normalize_str
    strip, clean = normalizers.StripAccents().normalize_str, bert(clean_text=True)
    chinese, nonspacing = bert(handle_chinese_chars=True), bert(strip_accents=True)
    return {
        "numeric": ranges(lambda c: len(digits.pre_tokenize_str("a" + c)) == 2),
        "punctuation": ranges(lambda c: len(punctuation.pre_tokenize_str("1" + c)) == 2),
        "word": ranges(lambda c: [p for p, _ in whitespace.pre_tokenize_str("a" + c)] == ["a" + c]),
        "mark": ranges(lambda c: strip(c) == ""),
        "bertcontrol": ranges(lambda c: clean(c) == ""),
        "chinese": ranges(lambda c: c != " " and chinese(c).startswith(" ")),
        "nonspacing": ranges(lambda c: nonspacing(c) == ""),
        "lower": [[c, lower(chr(c))] for c in CHARACTERS if lower(chr(c)) != chr(c)],
        "decomposes": ranges(lambda c: nfkd(c) != c),
    }


def scripts(source):
    """The ranges of each script."""
    text = (Path(source) / "pre_tokenizers/unicode_scripts/scripts.rs").read_text()
    found = {}
    for low, high, name in re.findall(r"(0x\w+)(?:\.\.=(0x\w+))? => Script::(\w+)", text):
        list_ = found.setdefault(name, [])
        low, high = int(low, 16), int(high or low, 16)
        if list_ and list_[-1][1] == low - 1:
            list_[-1][1] = high
        else:
            list_.append([low, high])
    return found


def flat(list_):
    """Ranges as distances, each from the number before."""
    out, last = [], 0
    for n in (n for r in list_ for n in r):
        out.append(n - last)
        last = n
    return out


def pack(measured, scripts_):
    sets = {k: flat(v) for k, v in measured.items() if k != "lower"}
    data = {"sets": sets, "lower": dict(measured["lower"]), "scripts": {k: flat(v) for k, v in scripts_.items()}}
    with open(Path(__file__).parent / "tables.json.gz", "wb") as f:
        with gzip.GzipFile(fileobj=f, mode="wb", filename="", mtime=0) as z:
            z.write(json.dumps(data, separators=(",", ":")).encode())


if __name__ == "__main__":
    pack(measure(), scripts(sys.argv[1]))
