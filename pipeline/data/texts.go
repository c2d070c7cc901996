package data

// ReadTexts calls emit with the texts of a file, of whatever format but shards. A document longer than about a megabyte
// comes in pieces: see Tokenizer.EncodePart. first and last report whether a piece begins and ends its document. read
// counts the bytes of the file that it accounts for. emit owns the text.
// Other findings are added to found.
func ReadTexts(path, field string, found *Findings, emit func(text []byte, first, last bool, read int64) error) error {
	empty := true
	err := readPieces(path, field, mark{}, func(p piece) error {
		found.Tally.add(p.tally)
		if p.empty() {
			return nil
		}
		empty = false
		found.see(path, p)
		return emit(p.text, p.first, p.last, p.read)
	})
	if err == nil && empty {
		found.emptyFile(path)
	}
	return err
}
