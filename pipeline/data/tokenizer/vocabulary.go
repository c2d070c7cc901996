package tokenizer

import "fmt"

// subword cuts the words of a pre-tokenizer into tokens. *bpe, *unigram, *wordPiece and *wordLevel implement it.
type subword interface {
	vocab() *vocabulary
	// index prepares what encode looks up. byteLevel reports what the pre-tokenizer does.
	index(byteLevel bool)
	// encode appends the ids of one word.
	encode(dst []uint32, word string, s *scratch) ([]uint32, error)
}

// vocabulary holds the tokens of a model.
type vocabulary struct {
	tokens    []string          // by id; "" where a hole is
	ids       map[string]uint32 // as written in the file
	byteLevel bool              // words are raw bytes, spelled in GPT-2's alphabet in the vocabulary
	letterIDs [256]int64        // ids of the letters of GPT-2's alphabet, by byte; -1 if none
	byteIDs   [256]int64        // ids of "<0xXX>", by byte; -1 if none
}

func (v *vocabulary) vocab() *vocabulary { return v }

func (v *vocabulary) index(byteLevel bool) {
	v.byteLevel = byteLevel
	find := func(token string) int64 {
		if id, ok := v.ids[token]; ok {
			return int64(id)
		}
		return -1
	}
	for b := range v.byteIDs {
		v.letterIDs[b], v.byteIDs[b] = find(byteChars[b]), find(byteToken(b))
	}
}

// byteToken is the token of byte_fallback for a byte.
func byteToken(b int) string { return fmt.Sprintf("<0x%02X>", b) }

// fallback appends the tokens of the bytes of s. It returns false if one has no token.
func (v *vocabulary) fallback(dst []uint32, s string) ([]uint32, bool) {
	for i := range len(s) {
		id := v.byteIDs[s[i]]
		if id < 0 {
			return nil, false
		}
		dst = append(dst, uint32(id))
	}
	return dst, true
}

// scratch is the memory of one encoding goroutine.
type scratch struct {
	cache map[string][]uint32 // ids of words
	syms  []uint32
	nodes []node
	heap  []candidate
	path  []pathNode
}

const (
	cacheWords    = 1 << 16 // what a cache holds at most
	cacheWordSize = 64      // longer words are hardly ever seen twice
)

// remember keeps the ids of a word in the cache.
func (s *scratch) remember(word string, ids []uint32) {
	if len(word) <= cacheWordSize && len(s.cache) < cacheWords {
		s.cache[string([]byte(word))] = append([]uint32(nil), ids...)
	}
}
