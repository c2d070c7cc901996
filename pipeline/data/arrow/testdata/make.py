"""Writes the Arrow files of the tests with pyarrow and datasets, and texts.json, what each must give."""
import json
import datasets
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
datasets.Dataset.from_dict({"text": texts, "n": list(range(len(texts)))}).save_to_disk("../../testdata/saved", num_shards=2)
for name in ["../../testdata/saved"]:
    info = json.load(open(name + "/dataset_info.json"))
    json.dump({"features": info["features"]}, open(name + "/dataset_info.json", "w"))
