package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// unigram is SentencePiece's unigram language model: it cuts a word into the tokens whose scores, logarithms of
// probabilities, have the largest sum. It follows Hugging Face's implementation, ties included.
type unigram struct {
	vocabulary
	scores       []float64 // by id
	unk          int64     // id of the unknown token; -1 if none
	unkScore     float64   // of a character that is no token
	byteFallback bool
	prefixes     prefixTree
}

// unkPenalty is the distance of an unknown character's score from the lowest score, as in SentencePiece.
const unkPenalty = 10

// scoredToken is ["token", score] in the file.
type scoredToken struct {
	token string
	score float64
}

func (s *scoredToken) UnmarshalJSON(raw []byte) error {
	pair := [2]any{&s.token, &s.score}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil || len(list) != len(pair) {
		return fmt.Errorf("%.40s: expected [\"token\", score]", raw)
	}
	for i := range pair {
		if err := json.Unmarshal(list[i], pair[i]); err != nil || isNull(list[i]) {
			return fmt.Errorf("%.40s: expected [\"token\", score]", raw)
		}
	}
	return nil
}

func parseUnigram(f modelFile) (*unigram, error) {
	var list []scoredToken
	if isNull(f.Vocab) {
		return nil, errors.New("vocab: missing")
	}
	if err := json.Unmarshal(f.Vocab, &list); err != nil {
		return nil, fmt.Errorf("vocab: %w", jsonError(err))
	}
	if len(list) == 0 {
		return nil, errors.New("vocab: empty")
	}
	m := &unigram{unk: -1, byteFallback: f.ByteFallback}
	m.ids = make(map[string]uint32, len(list))
	lowest := math.Inf(1)
	for id, t := range list {
		m.ids[t.token] = uint32(id) // of a token listed twice, the last id counts
		m.tokens, m.scores = append(m.tokens, t.token), append(m.scores, t.score)
		lowest = min(lowest, t.score)
	}
	m.unkScore = lowest - unkPenalty
	if f.UnkID != nil {
		if *f.UnkID < 0 || *f.UnkID >= int64(len(list)) {
			return nil, fmt.Errorf("unk_id is %d: expected an id from 0 to %d", *f.UnkID, len(list)-1)
		}
		m.unk = *f.UnkID
	}
	m.prefixes = newPrefixTree(m.ids)
	return m, nil
}

// pathNode is the best path that ends at a byte of the word.
type pathNode struct {
	score float64
	from  int32 // where its last token begins; -1: no path ends here
	id    int64
}

// encode appends the ids of one word.
func (m *unigram) encode(dst []uint32, word string, s *scratch) ([]uint32, error) {
	if word == "" {
		return dst, nil
	}
	if ids, ok := s.cache[word]; ok {
		return append(dst, ids...), nil
	}
	text := word
	if m.byteLevel {
		text = toAlphabet(word)
	}
	if err := m.search(text, s); err != nil {
		return nil, err
	}
	start := len(dst)
	dst = m.collect(dst, text, s.path)
	s.remember(word, dst[start:])
	return dst, nil
}

// search fills s.path with the best path to each byte of text.
func (m *unigram) search(text string, s *scratch) error {
	path := slices.Grow(s.path[:0], len(text)+1)[:len(text)+1]
	for i := range path {
		path[i] = pathNode{from: -1}
	}
	s.path = path
	for at := 0; at < len(text); {
		_, char := utf8.DecodeRuneInString(text[at:])
		single := false // a token is this character alone
		better := func(to int, score float64) bool { return path[to].from < 0 || path[at].score+score > path[to].score }
		reach := func(to int, id int64, score float64) {
			if better(to, score) {
				path[to] = pathNode{path[at].score + score, int32(at), id}
			}
		}
		m.prefixes.walk(text[at:], func(length int, id uint32) {
			single = single || length == char
			reach(at+length, int64(id), m.scores[id])
		})
		if !single && better(at+char, m.unkScore) {
			if m.unk < 0 {
				return fmt.Errorf("character %q has no token, and the model has no unk_id", text[at:at+char])
			}
			reach(at+char, m.unk, m.unkScore)
		}
		at += char
	}
	return nil
}

// collect appends the tokens of the best path to the end of text. Neighboring unknown tokens are one.
func (m *unigram) collect(dst []uint32, text string, path []pathNode) []uint32 {
	var cuts []int // the pieces' ends, the last piece first
	for at := len(text); at > 0; at = int(path[at].from) {
		if unknown := path[at].id == m.unk; !unknown || at == len(text) || path[cuts[len(cuts)-1]].id != m.unk {
			cuts = append(cuts, at)
		}
	}
	from := 0
	for _, to := range slices.Backward(cuts) {
		piece := text[from:to]
		from = to
		if id, ok := m.ids[piece]; ok {
			dst = append(dst, id)
			continue
		}
		if m.byteFallback {
			if with, ok := m.fallback(dst, piece); ok {
				dst = with
				continue
			}
		}
		dst = append(dst, uint32(m.unk))
	}
	return dst
}

// prefixTree finds the tokens that a text begins with. It is the sorted list of tokens; the tokens with a common prefix
// are a range of it.
type prefixTree struct {
	tokens []string
	ids    []uint32
	first  [257]int32 // where the tokens begin whose first byte is b or more
}

func newPrefixTree(ids map[string]uint32) (t prefixTree) {
	for s := range ids {
		if s != "" {
			t.tokens = append(t.tokens, s)
		}
	}
	slices.Sort(t.tokens)
	for _, s := range t.tokens {
		t.ids = append(t.ids, ids[s])
	}
	for b := range t.first {
		n, _ := slices.BinarySearchFunc(t.tokens, b, func(s string, b int) int { return int(s[0]) - b })
		t.first[b] = int32(n)
	}
	return t
}

// walk calls found for each token that text begins with, the shortest first.
func (t *prefixTree) walk(text string, found func(length int, id uint32)) {
	low, high := int(t.first[text[0]]), int(t.first[int(text[0])+1])
	for depth := 1; low < high; depth++ {
		if len(t.tokens[low]) == depth {
			found(depth, t.ids[low])
			low++
		}
		if depth == len(text) {
			return
		}
		low += narrow(t.tokens[low:high], depth, text[depth])
		if text[depth] < math.MaxUint8 {
			high = low + narrow(t.tokens[low:high], depth, text[depth]+1)
		}
	}
}

// narrow returns how many of the sorted tokens, all longer than depth and alike before it, have a byte below b there.
func narrow(tokens []string, depth int, b byte) int {
	n, _ := slices.BinarySearchFunc(tokens, b, func(s string, b byte) int { return int(s[depth]) - int(b) })
	return n
}

// isUnigram reports whether a model without a type is a unigram model: its vocabulary is a list.
func isUnigram(f modelFile) bool {
	return f.Type == "Unigram" || f.Type == "" && bytes.HasPrefix(bytes.TrimSpace(f.Vocab), []byte("["))
}
