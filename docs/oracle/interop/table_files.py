#!/usr/bin/env python3
"""Writes Parquet and Arrow files with the programs that people write them with, and compares their documents with pyarrow's.

pandas, polars, duckdb, datasets and fastparquet write with their defaults and every codec; pyarrow writes what Spark
and others do: pages of version 2, every encoding and codec, pages of nulls only, row groups of no rows, lists and
structs. gpupipe makes token shards of each file with the tokenizer of bytes, whose tokens must be the documents' bytes.
Columns that are no texts must be refused, by name and type. With --write, the files are only written.
"""
import argparse
import itertools
import json
import os
import subprocess
import sys

import duckdb
import fastparquet
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

ROWS = 300
BIN_HEADER = 1024  # bytes
PYARROW_CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


def make_texts():
    """Texts of many lengths, some equal, some empty; runs of nulls that fill whole pages."""
    texts = [f"document {i}\nin {'über ' * (i % 5)}{'字' * (i % 3)}. " for i in range(ROWS)]
    for i in range(0, ROWS, 10):
        texts[i] = "the same text "
    texts[7], texts[150] = "", "long " * 3000
    nulls = [None if i % 7 == 3 or 60 <= i < 140 else t for i, t in enumerate(texts)]
    return texts, nulls


TEXTS, NULLS = make_texts()
IDS = list(range(ROWS))
FILES = []  # name, column, expected error or None, writer


def file(name, column="text", error=None):
    """Registers a function that writes the file of a name."""
    def register(write):
        FILES.append((name, column, error, write))
        return write
    return register


def add(name, write, column="text", error=None):
    FILES.append((name, column, error, write))


def pandas_files():
    frame = pd.DataFrame({"id": IDS, "text": NULLS})
    for codec in [None, "snappy", "gzip", "brotli", "zstd", "lz4"]:
        add(f"pandas-{codec}.parquet", lambda p, c=codec: frame.to_parquet(p, compression=c))
    for codec in ["uncompressed", "lz4", "zstd"]:
        add(f"pandas-{codec}.feather", lambda p, c=codec: frame.to_feather(p, compression=c))
    add("pandas-default.parquet", frame.to_parquet)
    add("pandas-default.feather", frame.to_feather)
    add("pandas-indexed.parquet", frame.set_index("id").to_parquet)
    add("pandas-index-is-text.parquet", frame.set_index("text").to_parquet)
    add("pandas-category.parquet", frame.astype({"text": "category"}).to_parquet)
    add("pandas-category.feather", frame.astype({"text": "category"}).to_feather)
    add("pandas-object.parquet", frame.astype({"text": object}).to_parquet)
    add("pandas-bytes.parquet", pd.DataFrame({"text": [t and t.encode() for t in NULLS]}).to_parquet)
    add("pandas-partly-null.parquet", lambda p: frame.to_parquet(p, row_group_size=20))


def polars_files():
    frame = pl.DataFrame({"id": IDS, "text": NULLS})
    category = frame.with_columns(pl.col("text").cast(pl.Categorical))
    enum = frame.with_columns(pl.col("text").cast(pl.Enum(sorted(set(TEXTS)))))
    struct = pl.DataFrame({"meta": [{"n": i, "text": t} if i % 5 else None for i, t in enumerate(NULLS)]})
    many = frame.with_columns(pl.col("id") * 0 + 1)
    for codec in ["uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"]:
        add(f"polars-{codec}.parquet", lambda p, c=codec: frame.write_parquet(p, compression=c))
    for codec, level in itertools.product(["uncompressed", "lz4", "zstd"], ["oldest", "newest"]):
        compat = getattr(pl.CompatLevel, level)()
        add(f"polars-{codec}-{level}.arrow", lambda p, c=codec, v=compat: frame.write_ipc(p, compression=c, compat_level=v))
        add(f"polars-stream-{codec}-{level}.arrow", lambda p, c=codec, v=compat: frame.write_ipc_stream(p, compression=c, compat_level=v))
        for kind, f in {"category": category, "enum": enum, "chunks": pl.concat([frame, frame.clear(), frame], rechunk=False)}.items():
            add(f"polars-{kind}-{codec}-{level}.arrow", lambda p, c=codec, v=compat, f=f: f.write_ipc(p, compression=c, compat_level=v))
        add(f"polars-struct-{codec}-{level}.arrow", lambda p, c=codec, v=compat: struct.write_ipc(p, compression=c, compat_level=v), "meta.text")
    for kind, f in {"default": frame, "category": category, "enum": enum, "many": many}.items():
        add(f"polars-{kind}.parquet", f.write_parquet)
        add(f"polars-{kind}.feather", f.write_ipc)
    add("polars-groups.parquet", lambda p: frame.write_parquet(p, row_group_size=20, data_page_size=100))
    add("polars-struct.parquet", struct.write_parquet, "meta.text")


def duckdb_files():
    def copy(path, options="", select="select * from t"):
        db = duckdb.connect()
        db.register("frame", pa.table({"id": IDS, "text": NULLS}))
        db.execute("create table t as select * from frame order by id")
        db.execute(f"copy ({select}) to '{path}' (format parquet{options})")
    add("duckdb-default.parquet", copy)
    for codec, version in itertools.product(["uncompressed", "snappy", "gzip", "zstd", "brotli", "lz4", "lz4_raw"], ["v1", "v2"]):
        add(f"duckdb-{codec}-{version}.parquet", lambda p, c=codec, v=version: copy(p, f", codec {c}, parquet_version {v}"))
    distinct = "select id, text || id as text from t"
    add("duckdb-delta-v2.parquet", lambda p: copy(p, ", parquet_version v2, dictionary_size_limit 1", distinct))
    add("duckdb-struct.parquet", lambda p: copy(p, "", "select {'a': id, 'text': text} as meta from t"), "meta.text")
    add("duckdb-list.parquet", lambda p: copy(p, "", "select [text] as text from t"), error="list")
    add("duckdb-map.parquet", lambda p: copy(p, "", "select map {'k': text} as text from t"), error="map")


def datasets_files():
    data = Dataset.from_dict({"id": IDS, "text": NULLS})
    add("datasets-default.parquet", data.to_parquet)
    add("datasets-batches.parquet", lambda p: data.to_parquet(p, batch_size=13))

    def saved(path):
        folder = path + ".saved"
        data.save_to_disk(folder)
        os.rename(os.path.join(folder, "data-00000-of-00001.arrow"), path)
    add("datasets-saved.arrow", saved)


def fastparquet_files():
    frame = pd.DataFrame({"id": IDS, "text": pd.Series(NULLS, dtype=object)})
    for codec in ["UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4", "LZ4_RAW"]:
        add(f"fastparquet-{codec}.parquet", lambda p, c=codec: fastparquet.write(p, frame, compression=c))
    add("fastparquet-default.parquet", lambda p: fastparquet.write(p, frame))
    add("fastparquet-groups.parquet", lambda p: fastparquet.write(p, frame, row_group_offsets=[0, 65, 130, 200]))
    add("fastparquet-category.parquet", lambda p: fastparquet.write(p, frame.astype({"text": "category"})))
    full = pd.DataFrame({"text": pd.Series(TEXTS, dtype=object)})
    add("fastparquet-required.parquet", lambda p: fastparquet.write(p, full, has_nulls=False))


def pyarrow_parquet_files():
    kinds = {"string": pa.string(), "large": pa.large_string(), "view": pa.string_view(), "binary": pa.binary()}
    for codec, version, dictionary, values in itertools.product(PYARROW_CODECS, ["1.0", "2.0"], [True, False], ["nulls", "full", "required"]):
        column = pa.array(NULLS if values == "nulls" else TEXTS, pa.string())
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string(), values != "required")])
        table = pa.table([IDS, column], schema)
        add(f"pyarrow-{codec}-{version}-{'dict' if dictionary else 'plain'}-{values}.parquet", lambda p, t=table, c=codec, v=version, d=dictionary:
            pq.write_table(t, p, compression=c, data_page_version=v, use_dictionary=d, data_page_size=300, write_batch_size=7, row_group_size=130))
    for encoding, version, codec in itertools.product(["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"], ["1.0", "2.0"], ["none", "snappy"]):
        add(f"pyarrow-{encoding}-{version}-{codec}.parquet", lambda p, e=encoding, v=version, c=codec: pq.write_table(
            pa.table({"text": NULLS}), p, use_dictionary=False, column_encoding={"text": e}, data_page_version=v, compression=c, data_page_size=400, write_batch_size=7))
    for name, kind in kinds.items():
        add(f"pyarrow-type-{name}.parquet", lambda p, k=kind: pq.write_table(pa.table({"text": pa.array(NULLS, pa.string()).cast(k)}), p))
    add("pyarrow-fallback.parquet", lambda p: pq.write_table(pa.table({"text": NULLS}), p, dictionary_pagesize_limit=500, write_batch_size=9, data_page_size=300))
    add("pyarrow-checksums.parquet", lambda p: pq.write_table(pa.table({"text": NULLS}), p, write_page_checksum=True, compression="zstd"))
    add("pyarrow-dictionary.parquet", lambda p: pq.write_table(pa.table({"text": pa.array(NULLS).dictionary_encode()}), p))

    def empty_groups(path, table=pa.table({"text": NULLS})):
        with pq.ParquetWriter(path, table.schema) as w:
            for part in [table.slice(0, 0), table.slice(0, 50), table.slice(0, 0), table.slice(0, 0), table.slice(50), table.slice(0, 0)]:
                w.write_table(part)
    add("pyarrow-empty-groups.parquet", empty_groups)
    nested = [None if i % 9 == 4 else {"n": i, "inner": None if i % 4 == 1 else {"text": t}} for i, t in enumerate(NULLS)]
    for version in ["1.0", "2.0"]:
        add(f"pyarrow-nested-{version}.parquet", lambda p, v=version: pq.write_table(
            pa.table({"meta": nested}), p, data_page_version=v, data_page_size=200, write_batch_size=7), "meta.inner.text")
    refused_columns("pyarrow", ".parquet", lambda t, p: pq.write_table(t, p))


def refused_columns(writer, end, write):
    """Files whose column is no text, and what the error must name."""
    texts = pa.array(TEXTS[:20])
    one_each = pa.array([[t] for t in TEXTS[:20]], pa.list_(pa.string()))
    for name, column, error in [("list", one_each, "list"), ("large-list", one_each.cast(pa.large_list(pa.string())), "list"),
                                ("struct", pa.StructArray.from_arrays([texts], ["inner"]), "text.inner"),
                                ("list-of-structs", pa.array([[{"a": t}] for t in TEXTS[:20]]), "list"),
                                ("map", pa.array([[(t, t)] for t in TEXTS[:20]], pa.map_(pa.string(), pa.string())), "map"),
                                ("int", pa.array(range(20)), "int"), ("float", pa.array(np.arange(20.0)), "double"), ("bool", pa.array([True] * 20), "bool"),
                                ("other", None, "txt")]:
        table = pa.table({"txt": texts} if column is None else {"id": range(20), "text": column})
        add(f"{writer}-refused-{name}{end}", lambda p, t=table: write(t, p), error=error)


def write_arrow(path, table, new=pa.ipc.new_file, compression=None, max_chunksize=110, **options):
    with new(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression, **options)) as w:
        w.write_table(table, max_chunksize=max_chunksize)


def pyarrow_arrow_files():
    text = pa.array(NULLS)
    columns = {"string": text, "large": text.cast(pa.large_string()), "view": text.cast(pa.string_view()), "binary": text.cast(pa.binary()),
               "binary-view": text.cast(pa.binary_view()), "full": pa.array(TEXTS), "dictionary": text.dictionary_encode(),
               "dictionary-int8": pa.array(["a", "bcd", None, ""] * (ROWS // 4)).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
               "dictionary-uint64": text.dictionary_encode().cast(pa.dictionary(pa.uint64(), pa.large_string())),
               "runs": pa.RunEndEncodedArray.from_arrays(pa.array([100, 150, 300], pa.int32()), pa.array(["first ", None, "last "]))}
    for (name, column), form, codec in itertools.product(columns.items(), ["file", "stream"], [None, "lz4", "zstd"]):
        new = pa.ipc.new_file if form == "file" else pa.ipc.new_stream
        others = {"n": pa.nulls(len(column)), "tags": [["a"]] * len(column), "view": pa.array(["a view longer than inline"] * len(column), pa.string_view()),
                  "kind": pa.array(["x"] * len(column)).dictionary_encode()}
        table = pa.table({**others, "text": column})
        error = "run" if name == "runs" else None
        add(f"pyarrow-{name}-{form}-{codec}.arrow", lambda p, t=table, n=new, c=codec: write_arrow(p, t, n, c), error=error)

    def growing(path, new, delta):
        kind = pa.dictionary(pa.int32(), pa.string())
        words = pa.array([f"word {i} " for i in range(40)])
        with new(path, pa.schema([pa.field("text", kind)]), options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=delta)) as w:
            for most in [10, 20, 40]:
                indexes = pa.array([None if i % 6 == 5 else i % most for i in range(50)], pa.int32())
                w.write_batch(pa.record_batch([pa.DictionaryArray.from_arrays(indexes, words.slice(0, most))], ["text"]))

    def replaced(path):
        with pa.ipc.new_stream(path, pa.schema([pa.field("text", pa.dictionary(pa.int32(), pa.string()))])) as w:
            for k in range(3):
                values = pa.array([f"of batch {k}, {i} " for i in range(5)])
                w.write_batch(pa.record_batch([pa.DictionaryArray.from_arrays(pa.array([0, 1, 4, 3, None, 2], pa.int32()), values)], ["text"]))
    add("pyarrow-delta-file.arrow", lambda p: growing(p, pa.ipc.new_file, True))
    add("pyarrow-delta-stream.arrow", lambda p: growing(p, pa.ipc.new_stream, True))
    add("pyarrow-replaced-stream.arrow", replaced)

    def empty_batches(path, new):
        table = pa.table({"text": NULLS})
        with new(path, table.schema) as w:
            for part in [table.slice(0, 0), table.slice(0, 50), table.slice(0, 0), table.slice(50), table.slice(0, 0)]:
                for b in part.to_batches() or [pa.record_batch([pa.array([], pa.string())], ["text"])]:
                    w.write_batch(b)
    add("pyarrow-empty-batches-file.arrow", lambda p: empty_batches(p, pa.ipc.new_file))
    add("pyarrow-empty-batches-stream.arrow", lambda p: empty_batches(p, pa.ipc.new_stream))
    sliced = pa.table({"text": pa.array(["before "] * 13 + NULLS).slice(13)})
    add("pyarrow-sliced.arrow", lambda p: write_arrow(p, sliced))
    nested = [None if i % 9 == 4 else {"n": i, "inner": None if i % 4 == 1 else {"text": t}} for i, t in enumerate(NULLS)]
    add("pyarrow-nested.arrow", lambda p: write_arrow(p, pa.table({"meta": nested})), "meta.inner.text")
    add("pyarrow-legacy-stream.arrow", lambda p: write_arrow(p, pa.table({"text": NULLS}), pa.ipc.new_stream, use_legacy_format=True))
    refused_columns("pyarrow", ".arrow", lambda t, p: write_arrow(p, t))


def pyarrow_reads(path, column):
    """The documents of a file: the texts of a column that are neither null nor empty."""
    if path.endswith(".parquet"):
        table = pq.read_table(path)
    else:
        with open(path, "rb") as f:
            table = (pa.ipc.open_file if f.read(6) == b"ARROW1" else pa.ipc.open_stream)(path).read_all()
    at, *rest = column.split(".")
    values = table[at].to_pylist()
    for key in rest:
        values = [v and v[key] for v in values]
    return [v if isinstance(v, bytes) else v.encode() for v in values if v]


def gpupipe_reads(path, column, scratch):
    """The bytes of the documents that gpupipe finds and their number, or its error."""
    out = os.path.join(scratch, "shards", os.path.basename(path))
    done = subprocess.run([os.environ["GPUPIPE"], "data", "--json", "--tokenizer", "bytes", "--field", column, "--out", out, path],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip()
    with open(os.path.join(out, "train_000001.bin"), "rb") as f:
        tokens = np.frombuffer(f.read()[BIN_HEADER:], np.uint16)
    return tokens.astype(np.uint8).tobytes(), json.load(open(os.path.join(out, "manifest.json")))["statistics"]["documents"]


def check(path, column, error, scratch):
    """What is wrong with how gpupipe reads a file; empty: nothing."""
    content, found = gpupipe_reads(path, column, scratch)
    if error:
        return "" if content is None and error in found.lower() else f"expected an error that names {error!r}, got {found}"
    if content is None:
        return found
    want = pyarrow_reads(path, column)
    if content != b"".join(want) or found != len(want):
        return f"{found} documents of {len(content)} bytes, pyarrow reads {len(want)} of {sum(map(len, want))}"
    return ""


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--write", metavar="FOLDER", help="only write the files into this folder")
    a = a.parse_args()
    scratch = a.write or os.environ["SCRATCH"]
    for register in [pandas_files, polars_files, duckdb_files, datasets_files, fastparquet_files, pyarrow_parquet_files, pyarrow_arrow_files]:
        register()
    wrong = 0
    for name, column, error, write in FILES:
        path = os.path.join(scratch, name)
        write(path)
        if not a.write and (problem := check(path, column, error, scratch)):
            wrong += 1
            print(f"{name}: {problem}")
    if wrong:
        sys.exit(f"{wrong} of {len(FILES)} files differ")
    refused = sum(error is not None for _, _, error, _ in FILES)
    print(f"{len(FILES) - refused} files give pyarrow's documents, {refused} columns without texts are refused")


if __name__ == "__main__":
    main()
