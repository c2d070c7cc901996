"""Writes the Parquet files of the tests with pyarrow and fastparquet, and texts.json, what each must give.

null_pages_snappy and null_pages_gzip are not written here: alpha, a page of version 2 that has nulls only, whose values
take 0 bytes although the codec would need some, and beta, as parquet-java writes them.
"""
import json

import fastparquet
import pandas as pd
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
write("lz4_raw", nulls, compression="lz4", data_page_version="2.0")
with pq.ParquetWriter("empty_groups.parquet", pa.schema([("text", pa.string())])) as w:
    for part in [[], nulls[:20], [], [], nulls[20:], []]:
        w.write_table(pa.table({"text": pa.array(part, pa.string())}), row_group_size=50)
pq.write_table(pa.table({"text": pa.nulls(40), "id": range(40)}), "null_type.parquet")
fastparquet.write("lz4_fastparquet.parquet", pd.DataFrame({"text": pd.Series(nulls, dtype=object)}), compression="LZ4")
