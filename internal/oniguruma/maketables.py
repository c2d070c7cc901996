#!/usr/bin/env python3
"""Writes tables.json.gz from Oniguruma's source: maketables.py ONIGURUMA/src

The crate onig_sys, which Hugging Face's tokenizers links, carries that source. Its version 69.9.3 has Oniguruma 6.9.10,
whose tables are those of Unicode 16.
"""
import gzip
import json
import re
import sys
from pathlib import Path

SOURCE = Path(sys.argv[1])
CLASSES = ["CR", "Control", "Extend", "L", "LF", "LV", "LVT", "Prepend", "Regional_Indicator", "SpacingMark", "T", "V", "ZWJ"]


def text(name):
    return re.sub(r"/\*.*?\*/", "", (SOURCE / name).read_text(encoding="latin-1"), flags=re.S)


def numbers(body):
    return [int(n, 0) for n in re.findall(r"\b(?:0x[0-9a-fA-F]+|\d+)\b", body)]


def deltas(ranges):
    """Ranges as distances, each from the number before."""
    last, out = 0, []
    for n in ranges:
        out.append(n - last)
        last = n
    return out


def properties():
    """The ranges of each property, and the number of the property of each name."""
    c = text("unicode_property_data.c")
    arrays = {name: numbers(body)[1:] for name, body in re.findall(r"^(CR_\w+)\[\] = \{(.*?)\};", c, flags=re.S | re.M)}
    for name, other in re.findall(r"^#define (CR_\w+) (CR_\w+)", c, flags=re.M):
        arrays[name] = arrays[other]
    order = re.findall(r"CR_\w+", re.search(r"CodeRanges\[\] = \{(.*?)\};", c, flags=re.S)[1])
    pool = dict(re.findall(r'pool_str(\d+)\[sizeof\("(\w+)"\)\]', c))
    names = {pool[n]: int(number) for n, number in re.findall(r"\{pool_offset\((\d+)\),\s*(\d+)\}", c)}
    return names, [deltas(arrays[name]) for name in order]


def folds():
    """Each case folding with the characters that fold to it: [[folding], [characters]]."""
    c, out = re.sub(r"#define.*", "", text("unicode_fold_data.c")), []
    for size in 1, 2, 3:
        list_ = numbers(re.search(rf"OnigUnicodeFolds{size}\[\] = \{{(.*?)\}};", c, flags=re.S)[1])
        at = 0
        while at < len(list_):
            fold, count = list_[at:at + size], list_[at + size]
            at += size + 1 + count
            if count:
                out.append([fold, list_[at - count:at]])
    return out


def graphemes():
    """The ranges of each class of the rules for grapheme clusters."""
    found = {name: [] for name in CLASSES}
    for low, high, name in re.findall(r"\{(0x\w+), (0x\w+), EGCB_(\w+) \}", text("unicode_egcb_data.c")):
        found[name] += [int(low, 16), int(high, 16)]
    return {name: deltas(ranges) for name, ranges in found.items()}


names, ranges = properties()
data = json.dumps({"names": names, "ranges": ranges, "folds": folds(), "graphemes": graphemes()}, separators=(",", ":"))
with open(Path(__file__).parent / "tables.json.gz", "wb") as f:
    with gzip.GzipFile(fileobj=f, mode="wb", filename="", mtime=0) as z:
        z.write(data.encode())
print(len(names), "names of", len(ranges), "properties")
