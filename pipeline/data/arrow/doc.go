// Package arrow reads one column of texts from a file in Arrow's IPC format, as Hugging Face's datasets writes them. The
// file need not be trusted.
//
//	f, err := arrow.Open(r, size)        // schema
//	c, err := f.Column("text")           // a column of strings, by its path
//	for c.Next() { use(c.Text()) }       // row by row; c.Null() marks a row without a value
//	err = c.Err()
//
// A stream is a schema and record batches, each a message: metadata in a flatbuffer, then a body of buffers. A file in
// the file format holds a stream between two magic words: https://arrow.apache.org/docs/format/Columnar.html. Memory is
// bounded by MaxText for a text, and by maxBuffer for a buffer that is compressed, whatever sizes the file declares.
//
// It reads the types string, large_string, binary and large_binary, at the top or in structs, and buffers that are not
// compressed or compressed by zstd. It does not read lists, views, dictionaries, and buffers compressed by lz4.
package arrow
