"""Writes the Parquet files of the tests with pyarrow, and texts.json, what each must give."""
import json

import pyarrow as pa
import pyarrow.parquet as pq

texts = [f"document {i}\nof a few lines, {'über ' * (i % 5)}{'字' * (i % 3)}\n" for i in range(40)]
texts[7] = ""
texts[11] = "long " * 900
nulls = [None if i % 6 == 2 else t for i, t in enumerate(texts)]
json.dump({"texts": texts, "nulls": nulls}, open("texts.json", "w"), ensure_ascii=False, indent=0)


def write(name, values, nullable=True, **options):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("tags", pa.list_(pa.string())), pa.field("text", pa.string(), nullable),
                        pa.field("meta", pa.struct([pa.field("source", pa.string())]))])
    n = len(values)
    table = pa.table([list(range(n)), [["a", "b"][: i % 3] for i in range(n)], values, [{"source": v} if v is None or len(v) % 2 else {"source": "s" + v} for v in values]], schema)
    pq.write_table(table, name + ".parquet", row_group_size=options.pop("row_group_size", 17), **options)


write("plain", texts, compression="none", use_dictionary=False, nullable=False)
write("nulls", nulls, compression="none", use_dictionary=False)
write("snappy", nulls, compression="snappy")
write("gzip", nulls, compression="gzip", data_page_version="2.0")
write("zstd", nulls, compression="zstd", write_page_checksum=True, data_page_size=200, write_batch_size=5)
write("pages", nulls, compression="zstd", data_page_version="2.0", use_dictionary=False, data_page_size=200, write_batch_size=5)
write("delta_length", nulls, compression="snappy", use_dictionary=False, column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"})
write("delta_bytes", nulls, compression="none", use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"}, data_page_version="2.0")
write("fallback", nulls, compression="snappy", dictionary_pagesize_limit=64, write_batch_size=5)
write("brotli", texts, compression="brotli")
