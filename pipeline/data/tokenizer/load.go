package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// file has the keys of a tokenizer.json that are read. Truncation and padding shape batches and prompts, not the tokens
// of a text, and are not applied. Framing applies the post-processor.
type file struct {
	AddedTokens  []addedToken    `json:"added_tokens"`
	Normalizer   json.RawMessage `json:"normalizer"`
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
	Decoder      json.RawMessage `json:"decoder"`
	Model        json.RawMessage `json:"model"`
}

type modelFile struct {
	Type         string            `json:"type"`
	Dropout      *float64          `json:"dropout"`
	Unk          *string           `json:"unk_token"` // of BPE
	UnkID        *int64            `json:"unk_id"`    // of Unigram
	Prefix       *string           `json:"continuing_subword_prefix"`
	Suffix       *string           `json:"end_of_word_suffix"`
	FuseUnk      bool              `json:"fuse_unk"`
	ByteFallback bool              `json:"byte_fallback"`
	IgnoreMerges bool              `json:"ignore_merges"`
	Vocab        json.RawMessage   `json:"vocab"`
	Merges       []json.RawMessage `json:"merges"`
	MaxChars     *int              `json:"max_input_chars_per_word"` // of WordPiece
}

// maxHoles is how many ids below the largest may be unused: a few models have gaps, but an id far off is a mistake, and
// would cost an embedding row for every number below it.
const maxHoles = 1 << 16

// parse reads a tokenizer.json. d is what belongs to it.
func parse(name string, data []byte, d description) (*fileTokenizer, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("not a tokenizer.json: %w", jsonError(err))
	}
	if isNull(f.Model) {
		return nil, errors.New("not a tokenizer.json: no \"model\"")
	}
	m, err := parseModel(f.Model)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	t := &fileTokenizer{name: name, json: data, hash: hashOf(data), model: m, notes: d.notes}
	if t.normalize, err = parseNormalizer(f.Normalizer, 0); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if t.pre, err = parsePreTokenizer(f.PreTokenizer); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	if t.decode, err = parseDecoder(f.Decoder); err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	added, changed, err := d.extend(f.AddedTokens, m.vocab())
	if err != nil {
		return nil, err
	}
	if changed {
		if t.json, err = withField(data, "added_tokens", added); err != nil {
			return nil, err
		}
		t.hash = hashOf(t.json)
	}
	if t.added, t.size, err = newAddedTokens(added, m.vocab(), t.normalize); err == nil {
		err = checkNumbers(f.AddedTokens, m.vocab())
	}
	if err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	_, byteLevel := lastPre(t.pre).(byteLevelPre)
	m.index(byteLevel)
	t.byteDecoded(f.Decoder)
	t.findRestarts()
	if err := d.checkEnds(t.size); err != nil {
		return nil, err
	}
	t.special = d.special(t)
	return t, d.frame(t)
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// jsonError adds the place to a syntax error.
func jsonError(err error) error {
	var syn *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syn):
		return fmt.Errorf("invalid JSON at byte %d: %w", syn.Offset, err)
	case errors.As(err, &typ) && typ.Field == "":
		return fmt.Errorf("a JSON %s: expected an object", typ.Value)
	case errors.As(err, &typ):
		return fmt.Errorf("%q at byte %d is a JSON %s: expected %s", typ.Field, typ.Offset, typ.Value, typ.Type)
	}
	return err
}

func parseModel(raw json.RawMessage) (subword, error) {
	var f modelFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, jsonError(err)
	}
	switch {
	case isUnigram(f):
		return parseUnigram(f)
	case f.Type == "WordPiece":
		return parseWordPiece(f)
	case f.Type == "WordLevel":
		return parseWordLevel(f)
	case f.Type == "BPE" || f.Type == "" && f.Merges != nil:
		return parseBPE(f)
	}
	return nil, fmt.Errorf("type is %q: expected \"BPE\", \"Unigram\", \"WordPiece\" or \"WordLevel\"", f.Type)
}

func parseBPE(f modelFile) (*bpe, error) {
	if f.Dropout != nil && *f.Dropout != 0 {
		return nil, fmt.Errorf("dropout is %v: expected none, for tokens must not change from run to run", *f.Dropout)
	}
	ids, err := parseVocab(f.Vocab)
	if err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	m := &bpe{vocabulary: vocabulary{ids: ids}, unk: -1, fuseUnk: f.FuseUnk, byteFallback: f.ByteFallback, ignoreMerges: f.IgnoreMerges,
		prefix: deref(f.Prefix), suffix: deref(f.Suffix)}
	if deref(f.Unk) != "" {
		id, ok := ids[*f.Unk]
		if !ok {
			return nil, fmt.Errorf("unk_token %q is not in the vocab", *f.Unk)
		}
		m.unk = int64(id)
	}
	if m.tokens, err = byID(ids); err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	if err := m.parseMerges(f.Merges); err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	return m, nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// parseVocab reads {"token": id, …}. It reads token by token, because a Go map would hide a token listed twice.
func parseVocab(raw json.RawMessage) (map[string]uint32, error) {
	if isNull(raw) {
		return nil, errors.New("missing")
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("starts with %v: expected an object of tokens and ids", open)
	}
	ids := map[string]uint32{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		token := key.(string) // the decoder lets only strings be keys
		val, err := d.Token()
		if err != nil {
			return nil, err
		}
		id, err := parseID(val)
		if err != nil {
			return nil, fmt.Errorf("token %q: %w", token, err)
		}
		if _, dup := ids[token]; dup {
			return nil, fmt.Errorf("token %q is listed twice", token)
		}
		ids[token] = id
	}
	if len(ids) == 0 {
		return nil, errors.New("empty")
	}
	return ids, nil
}

func parseID(val json.Token) (uint32, error) {
	n, ok := val.(json.Number)
	if !ok {
		return 0, fmt.Errorf("id is %v: expected a number", val)
	}
	id, err := n.Int64()
	if err != nil || id < 0 || id > 1<<31-1 {
		return 0, fmt.Errorf("id is %s: expected an integer from 0 to 2^31-1", n)
	}
	return uint32(id), nil
}

// byID inverts a vocabulary and refuses two tokens of one id, and ids far beyond their number.
func byID(ids map[string]uint32) ([]string, error) {
	top := uint32(0)
	for _, id := range ids {
		top = max(top, id)
	}
	if int(top) >= len(ids)+maxHoles {
		return nil, fmt.Errorf("largest id is %d, of %d tokens: expected at most %d ids unused", top, len(ids), maxHoles)
	}
	tokens := make([]string, top+1)
	taken := make([]bool, top+1)
	for s, id := range ids {
		if taken[id] {
			a, b := min(s, tokens[id]), max(s, tokens[id])
			return nil, fmt.Errorf("id %d belongs to both %q and %q", id, a, b)
		}
		tokens[id], taken[id] = s, true
	}
	return tokens, nil
}

// parseMerges reads merges as "a b" or ["a", "b"], and finds which initial symbols they can bring together.
func (m *bpe) parseMerges(raw []json.RawMessage) error {
	m.merges = make(map[uint64]merge, len(raw))
	m.joins = make(map[uint64]bool, len(raw))
	first := make([]uint32, len(m.tokens)) // of each token, its first and last initial symbol
	for i := range first {
		first[i] = uint32(i)
	}
	last := slices.Clone(first)
	made := make([]bool, len(m.tokens))
	used := make([]bool, len(m.tokens))
	ordered := true
	for rank, r := range raw {
		a, b, err := parsePair(r)
		if err != nil {
			return fmt.Errorf("number %d: %w", rank, err)
		}
		rest, ok := strings.CutPrefix(b, m.prefix)
		if !ok {
			return fmt.Errorf("number %d (%q + %q): expected the second token to begin with continuing_subword_prefix %q", rank, a, b,
				m.prefix)
		}
		var id [3]uint32
		for i, s := range []string{a, b, a + rest} {
			var ok bool
			if id[i], ok = m.ids[s]; !ok {
				return fmt.Errorf("number %d (%q + %q): token %q is not in the vocab", rank, a, b, s)
			}
		}
		if _, dup := m.merges[pairKey(id[0], id[1])]; dup {
			return fmt.Errorf("number %d (%q + %q) is listed twice", rank, a, b)
		}
		m.merges[pairKey(id[0], id[1])] = merge{uint32(rank), id[2]}
		m.joins[pairKey(last[id[0]], first[id[1]])] = true
		ordered = ordered && (made[id[2]] || !used[id[2]]) // a token is made before it is merged further
		used[id[0]], used[id[1]] = true, true
		if !made[id[2]] {
			made[id[2]], first[id[2]], last[id[2]] = true, first[id[0]], last[id[1]]
		} else if first[id[2]] != first[id[0]] || last[id[2]] != last[id[1]] {
			ordered = false
		}
		ordered = ordered && !m.isSymbol(id[2])
	}
	if !ordered {
		m.joins = nil
	}
	return nil
}

// isSymbol reports whether a token may stand for a character before any merge.
func (m *bpe) isSymbol(id uint32) bool {
	token := m.tokens[id]
	if _, ok := fallbackByte(token); ok && m.byteFallback || int64(id) == m.unk {
		return true
	}
	token = strings.TrimSuffix(strings.TrimPrefix(token, m.prefix), m.suffix)
	return utf8.RuneCountInString(token) == 1
}

func parsePair(raw json.RawMessage) (a, b string, err error) {
	var pair []string
	if len(raw) > 0 && raw[0] == '[' {
		if err := json.Unmarshal(raw, &pair); err != nil {
			return "", "", jsonError(err)
		}
	} else {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return "", "", fmt.Errorf("%.40s: expected \"a b\" or [\"a\", \"b\"]", raw)
		}
		pair = strings.Split(s, " ")
	}
	if len(pair) != 2 || pair[0] == "" || pair[1] == "" {
		return "", "", fmt.Errorf("%.40s: expected two tokens", raw)
	}
	return pair[0], pair[1], nil
}
