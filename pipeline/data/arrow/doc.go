// Package arrow reads one column of texts from a file in Arrow's IPC format, as Hugging Face's datasets writes them.
// The file need not be trusted.
//
//	f, err := arrow.Open(r, size)        // schema
//	c, err := f.Column("text")           // a column of strings, by its path
//	for c.Next() { use(c.Text()) }       // row by row; c.Null() marks a row without a value
//	err = c.Err()
//
// A stream is a schema, dictionaries and record batches, each a message: metadata in a flatbuffer, then a body of
// buffers. A file in the file format ends with a footer that has the schema and lists the messages:
// https://arrow.apache.org/docs/format/Columnar.html. Memory is bounded by MaxText for a text, by maxBuffer for each
// buffer of a column that is compressed, and by maxDictionary for a dictionary, whatever sizes the file declares.
//
// It reads the types string and binary, their large and view forms, dictionaries of them, which may grow and be
// replaced, and null, at the top or in structs, and buffers that are not compressed or compressed by LZ4 or ZSTD. It
// does not read lists, unions and run-end encoded columns.
package arrow
