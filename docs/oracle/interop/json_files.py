#!/usr/bin/env python3
"""Writes JSON with the programs that people write it with, and compares the documents that gpupipe reads of it.

pandas, polars, duckdb, datasets and Python's json write with their defaults and options, plain and compressed. gpupipe makes
token shards of each file with the tokenizer of bytes, whose tokens must be the bytes of the texts that Python reads. Then
files are changed at random: where Python's json still reads them, documents must be equal, else gpupipe must refuse them.

$GPUPIPE is the program, $SCRATCH a folder for files. The last line of the output is a summary.
"""
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
from datasets import Dataset

GPUPIPE, SCRATCH = os.environ.get("GPUPIPE", "gpupipe"), Path(os.environ.get("SCRATCH", "/tmp"))
BIN_HEADER = 1024  # bytes
MUTATIONS = 250

TEXTS = ["alpha", None, "über naïve 字 😀", "", "line\nbreak\r\n\ttab", "\"quotes\" \\ / \b\f", "\u0000\u001f\u007f\u2028", "</script>", None, "x" * 200_000,
         "\ufeffmark", "{\"text\": \"inner\"}", " space ", "last"]
ROWS = [{"id": i, "score": i / 3, "tags": ["a", str(i)], "meta": {"text": f"nested {i}", "n": None}, "text": t} for i, t in enumerate(TEXTS)]


def documents(raw, field="text"):
    """The texts that Python's json reads: of an array, or of objects that end at the end of a line."""
    text = raw.decode().removeprefix("\ufeff")
    decoder, at, values = json.JSONDecoder(), 0, []
    if text.strip(" \t\r\n").startswith("["):
        values = json.loads(text)
    else:
        at = re.compile(r"[ \t\r\n]*").match(text).end()
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            values.append(value)
            after = re.compile(r"[ \t\r]*(\n|$)").match(text, at)
            if not after:
                raise ValueError("no end of the line")
            at = re.compile(r"[ \t\r\n]*").match(text, after.end()).end()
    out = []
    for value in values:
        for depth, key in enumerate(field.split(".")):
            if depth and value is None:
                break
            if not isinstance(value, dict):
                raise ValueError("no object")
            value = value.get(key)  # a field that is absent counts as null
        if value is not None and not isinstance(value, str):
            raise ValueError("no text")
        if value:
            out.append(re.sub("[\ud800-\udfff]", "\ufffd", value))
    if not out:
        raise ValueError("no document")
    return out


def written(folder):
    """Writes files and returns their names, with fields other than text."""
    frame, lazy = pd.DataFrame(ROWS), pl.DataFrame(ROWS)
    set_ = Dataset.from_list(ROWS)
    sql = duckdb.connect()
    sql.register("rows", frame.drop(columns=["meta", "tags"]))
    lines = "".join(json.dumps(r) + "\n" for r in ROWS)
    frame.to_json(folder / "pandas.json", orient="records")
    frame.to_json(folder / "pandas-lines.jsonl", orient="records", lines=True)
    frame.to_json(folder / "pandas-lines.json.gz", orient="records", lines=True, force_ascii=False)
    frame.to_json(folder / "pandas-indent.json", orient="records", indent=2)
    lazy.write_json(folder / "polars.json")
    lazy.write_ndjson(folder / "polars.ndjson")
    sql.execute(f"COPY rows TO '{folder}/duckdb.json'")
    sql.execute(f"COPY rows TO '{folder}/duckdb-array.json' (ARRAY true)")
    sql.execute(f"COPY rows TO '{folder}/duckdb.json.gz' (COMPRESSION gzip)")
    set_.to_json(folder / "datasets.jsonl")
    set_.to_json(folder / "datasets.jl.gz", compression="gzip")
    set_.to_json(folder / "datasets-array.json", lines=False)
    for name, text in {
        "json.jsonlines": lines,
        "json-utf8.jl": "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in ROWS),
        "json-array.json": json.dumps(ROWS, ensure_ascii=False),
        "json-indent.json": json.dumps(ROWS, indent="\t"),
        "json-objects.json": "\n".join(json.dumps(r, indent=1) for r in ROWS),
        "json-bom.jsonl": "\ufeff" + lines,
        "json-bom-array.json": "\ufeff" + json.dumps(ROWS),
        "json-crlf.jsonl": lines.replace("\n", "\r\n"),
        "json-nan.jsonl": "".join(json.dumps({**r, "score": float(x)}) + "\n" for r, x in zip(ROWS, ["nan", "inf", "-inf", "1e300"] * 9)),
        "json-last-line.jsonl": lines.rstrip("\n"),
        "json-blank-lines.jsonl": lines.replace("\n", "\n\n \n"),
        "json-twice.jsonl": "".join(f'{{"text": "first", "text": {json.dumps(r["text"])}}}\n' for r in ROWS),
        "json-surrogates.jsonl": lines + '{"text": "' + "y" * 1000 + '\\ud83d \\ude00 \\ud83d\\ude00"}\n',
    }.items():
        (folder / name).write_bytes(text.encode())
    for name in ["json.jsonlines", "json-array.json", "json-bom.jsonl"]:
        raw = (folder / name).read_bytes()
        (folder / (name + ".gz")).write_bytes(gzip.compress(raw))
        (folder / (name + ".zst")).write_bytes(pa.compress(raw, codec="zstd", asbytes=True))
    return sorted(p.name for p in folder.iterdir())


def content(path):
    """The content of a file. Beside a .zst lies what it was made of."""
    if path.suffix == ".zst":
        path = path.with_suffix("")
    raw = path.read_bytes()
    return gzip.decompress(raw) if path.suffix == ".gz" else raw


def read(path, field="text"):
    """The bytes of the texts that gpupipe reads, or None, and what it says."""
    out = SCRATCH / "shards"
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run([GPUPIPE, "data", "--tokenizer", "bytes", "--field", field, "--out", str(out), str(path)], capture_output=True, text=True)
    if done.returncode not in (0, 2):
        sys.exit(f"{path.name}: exit status {done.returncode}\n{done.stderr}")
    if done.returncode == 2:
        return None, done.stderr
    return (out / "train_000001.bin").read_bytes()[BIN_HEADER::2], done.stderr


def compare(path, field="text"):
    """Whether the file was read; exits where gpupipe and Python differ."""
    try:
        want = documents(content(path), field)
    except ValueError:
        want = None
    got, message = read(path, field)
    if (got is None) != (want is None) or want is not None and got != "".join(want).encode():
        kept = Path(os.environ.get("TMPDIR", "/tmp")) / f"differs-{path.name}"
        shutil.copy(path, kept)
        sys.exit(f"{kept}, field {field}: Python reads {want and ''.join(want)[:80]!r}, gpupipe {got and got[:80]!r}\n{message}")
    return want is not None


def mutated(raw, rng):
    """raw with a few ASCII bytes changed, left out or doubled."""
    out = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out))
        if out[at] >= 0x80:
            continue
        kind = rng.randrange(3)
        if kind == 0:
            out[at] = ord(rng.choice("\"\\{}[],:\n truefalsn0123456789.eE+-NaI\x01/u"))
        elif kind == 1:
            del out[at]
        else:
            out[at:at] = out[at:at + 1]
    return bytes(out)


def main():
    folder = SCRATCH / "files"
    folder.mkdir()
    names = written(folder)
    for name in names:
        if not compare(folder / name):
            sys.exit(f"{name}: Python's json reads no documents")
    nested = [n for n in names if "duckdb" not in n and "twice" not in n]
    for name in nested:
        compare(folder / name, "meta.text")
    rng, accepted = random.Random(3), 0
    small = [{"id": 1, "text": "é a", "x": [True, None, -1.5e3, {"k": "v"}]}, {"text": None, "y": float("nan")}, {"text": "b\n\"\u2028😀" + "z" * 500}]
    seeds = ["".join(json.dumps(r) + "\n" for r in small), json.dumps(small, ensure_ascii=False), json.dumps(small, indent=1),
             "\n".join(json.dumps(r, indent=1, ensure_ascii=False) for r in small)]
    path = SCRATCH / "changed.json"
    for i in range(MUTATIONS):
        path.write_bytes(mutated(seeds[i % len(seeds)].encode(), rng))
        accepted += compare(path)
    print(f"{len(names)} files and {len(nested)} nested fields as Python reads them; of {MUTATIONS} changed files {accepted} alike, the others refused")


if __name__ == "__main__":
    main()
