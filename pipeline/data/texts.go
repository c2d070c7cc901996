package data

// ReadTexts calls emit with the texts of a file, of whatever format but shards. A document longer than about a megabyte
// comes in pieces: see Tokenizer.EncodePart. first and last report whether a piece begins and ends its document. read
// counts the bytes of the file that it accounts for. emit owns the text.
func ReadTexts(path, field string, emit func(text []byte, first, last bool, read int64) error) error {
	return readPieces(path, field, mark{}, func(p piece) error { return emit(p.text, p.first, p.last, p.read) })
}
