package data

// pieceSize is about how much text is encoded at once. A longer document is cut, after a line break between two
// characters that are not space where there is one: there the patterns of GPT-2 and its descendants always cut, so that
// the pieces give the tokens of the whole. Where text is cut depends on nothing but the text.
const pieceSize = 1 << 20

// mark is where reading goes on for a piece: in a text at the byte offset of the piece; in a file of several documents
// after the document before, at the offset of a byte or, in tables, of a row, with pieces counted within the document.
type mark struct {
	Offset int64 `json:"offset"`
	Piece  int   `json:"piece"`
}

// piece is text to encode.
type piece struct {
	mark
	text        []byte
	first, last bool  // of its document
	read        int64 // bytes of the file it accounts for
	tally       Tally // of what was passed over before it, and of its document
}

// empty reports whether the piece is no text: it has the tally of what follows the last document of a file.
func (p piece) empty() bool { return !p.first && !p.last && len(p.text) == 0 }

// readPieces calls emit with the pieces of a file of documents, from one of its marks on. emit owns the text.
func readPieces(path, field string, from mark, emit func(piece) error) error {
	return readInput(path, field, from, emit, emitDocument)
}

// readInput calls emit with the pieces of a text, or each with every document of a file of several.
func readInput(path, field string, from mark, emit func(piece) error, each eachDocument) error {
	if size, err := fileSize(path); err != nil || size == 0 {
		return err
	}
	format, err := formatOf(path)
	if err != nil {
		return err
	}
	if format.kind == kindText {
		return readText(path, format.compression, from, emit)
	}
	return readDocuments(path, format, field, from, emit, each)
}

// document is one of the documents of a file of several.
type document struct {
	text  []byte
	mark  int64 // where reading goes on for it
	skip  int   // pieces of it not to emit
	read  int64 // bytes of the file since the document before
	tally Tally
}

// eachDocument takes a document and emits its pieces.
type eachDocument func(d document, emit func(piece) error) error

// emitDocument cuts a document into pieces.
func emitDocument(d document, emit func(piece) error) error {
	text := d.text
	for n, first := 0, true; ; n++ {
		cut := len(text)
		if cut > pieceSize {
			cut = cutPoint(text[:pieceSize])
		}
		p := piece{mark: mark{d.mark, n}, text: text[:cut], first: first, last: cut == len(text)}
		if first {
			p.tally = d.tally
		}
		if first = false; p.last {
			p.read = d.read
		}
		if n >= d.skip {
			if err := emit(p); err != nil {
				return err
			}
		}
		if p.last {
			return nil
		}
		text = text[cut:]
	}
}
