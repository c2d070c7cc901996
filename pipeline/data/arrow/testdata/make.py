"""Writes the Arrow files of the tests with pyarrow, polars and datasets, and texts.json, what each must give."""
import json
import datasets
import polars as pl
import pyarrow as pa

texts = [f"document {i}\nof a few lines, {'über ' * (i % 5)}{'字' * (i % 3)}\n" for i in range(40)]
texts[7] = ""
texts[11] = "long " * 900
nulls = [None if i % 6 == 2 else t for i, t in enumerate(texts)]
json.dump({"texts": texts, "nulls": nulls}, open("texts.json", "w"), ensure_ascii=False, indent=0)


def write(name, values, text=pa.string(), new=pa.ipc.new_stream, compression=None):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("tags", pa.list_(pa.string())), pa.field("view", pa.string_view()),
                        pa.field("kind", pa.dictionary(pa.int8(), pa.string())), pa.field("none", pa.null()),
                        pa.field("text", text), pa.field("meta", pa.struct([pa.field("n", pa.int32()), pa.field("source", text)]))])
    n = len(values)
    views = pa.array([f"a view that is not inlined {i}" for i in range(n)], pa.string_view())
    meta = [None if i % 9 == 4 else {"n": i, "source": v} for i, v in enumerate(values)]
    kinds = pa.array(["x", "y"] * (n // 2)).dictionary_encode().cast(schema.field("kind").type)
    table = pa.table([range(n), [["a", "b"][: i % 3] for i in range(n)], views, kinds, pa.nulls(n), pa.array(values, text), meta], schema)
    with new(name, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as w:
        w.write_table(table, max_chunksize=17)


write("stream.arrow", nulls)
write("plain.arrow", texts)
write("large.arrow", nulls, pa.large_string())
write("file.arrow", nulls, pa.binary(), pa.ipc.new_file)
write("zstd.arrow", nulls, compression="zstd")
write("lz4.arrow", nulls, compression="lz4")
write("views.arrow", nulls, pa.string_view(), pa.ipc.new_file, "lz4")
write("dictionary.arrow", nulls, pa.dictionary(pa.uint8(), pa.string()), pa.ipc.new_file, "zstd")
frame = pl.DataFrame({"id": range(40), "text": nulls})
frame.write_ipc("polars.arrow")
frame.write_ipc("polars_large.arrow", compat_level=pl.CompatLevel.oldest(), compression="zstd")
frame.with_columns(pl.col("text").cast(pl.Categorical)).write_ipc("polars_category.arrow", compression="lz4")


def growing(name, new, delta):
    """Three batches whose dictionary grows: by deltas, or by other dictionaries in its place."""
    kind = pa.dictionary(pa.int32(), pa.string())
    known = list(dict.fromkeys(t for t in nulls if t is not None))
    with new(name, pa.schema([("text", kind)]), options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=delta)) as w:
        for rows in [nulls[:10], nulls[10:30], nulls[30:]]:
            most = 1 + max(known.index(t) for t in rows if t is not None)
            values = known[:most] if delta else known[:most][::-1]
            indexes = pa.array([None if t is None else values.index(t) for t in rows], pa.int32())
            w.write_batch(pa.record_batch([pa.DictionaryArray.from_arrays(indexes, pa.array(values))], ["text"]))


growing("delta_file.arrow", pa.ipc.new_file, True)
growing("delta_stream.arrow", pa.ipc.new_stream, True)
growing("replaced.arrow", pa.ipc.new_stream, False)
datasets.Dataset.from_dict({"text": texts, "n": list(range(len(texts)))}).save_to_disk("../../testdata/saved", num_shards=2)
for name in ["../../testdata/saved"]:
    info = json.load(open(name + "/dataset_info.json"))
    json.dump({"features": info["features"]}, open(name + "/dataset_info.json", "w"))
