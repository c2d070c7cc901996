// Package parquet reads one column of texts from a Parquet file. The file need not be trusted.
//
//	f, err := parquet.Open(r, size)      // footer: schema and row groups
//	c, err := f.Column("text")           // a column of byte arrays, by its path
//	for c.Next() { use(c.Text()) }       // row by row; c.Null() marks a row without a value
//	err = c.Err()
//
// A file is a sequence of row groups. A row group has a chunk of each column, and a chunk has pages, which are
// compressed one by one: https://parquet.apache.org/docs/file-format. Memory is bounded by MaxPage for a page, by as
// much for the dictionary of a chunk and by maxFooter for the footer, whatever sizes the file declares: sizes are
// compared with the bytes that are there before anything is allocated.
//
// It reads data pages of versions 1 and 2, the encodings PLAIN, RLE_DICTIONARY, DELTA_LENGTH_BYTE_ARRAY and
// DELTA_BYTE_ARRAY, pages that are not compressed, and the codecs SNAPPY, GZIP, BROTLI, ZSTD, LZ4_RAW and LZ4. It does
// not read lists, maps, encrypted files and the codec LZO.
package parquet
