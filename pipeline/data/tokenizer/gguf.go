package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
)

// This file writes tokenizers as metadata of GGUF, and reads them.

// Keys of the metadata.
const (
	ggufModel       = "tokenizer.ggml.model"
	ggufPre         = "tokenizer.ggml.pre"
	ggufTokens      = "tokenizer.ggml.tokens"
	ggufTypes       = "tokenizer.ggml.token_type"
	ggufMerges      = "tokenizer.ggml.merges"
	ggufScores      = "tokenizer.ggml.scores"
	ggufBOS         = "tokenizer.ggml.bos_token_id"
	ggufEOS         = "tokenizer.ggml.eos_token_id"
	ggufUnknown     = "tokenizer.ggml.unknown_token_id"
	ggufEOT         = "tokenizer.ggml.eot_token_id"
	ggufEOM         = "tokenizer.ggml.eom_token_id"
	ggufAllEnds     = "gpupipe.tokenizer.end_token_ids" // all ends in order, which llama.cpp has no key for
	ggufPad         = "tokenizer.ggml.padding_token_id"
	ggufTemplate    = "tokenizer.chat_template"  // a named one has ".NAME" after it
	ggufTemplates   = "tokenizer.chat_templates" // the names
	ggufAddBOS      = "tokenizer.ggml.add_bos_token"
	ggufAddEOS      = "tokenizer.ggml.add_eos_token"
	ggufSpacePrefix = "tokenizer.ggml.add_space_prefix"
)

// Kinds of tokens, beside the kinds of SentencePiece's pieces, which have the same numbers.
const (
	normalPiece = 1
	unusedPiece = 5
	bytePiece   = 6
)

// dummyMerge is the only merge of a vocabulary without any: llama.cpp refuses an empty list. No text has its
// characters, which GPT-2's alphabet lacks.
const dummyMerge = "\u2400 \u2400"

// ggufPreTokenizer is a pre-tokenizer by its name in llama.cpp, which knows the rules of each name.
type ggufPreTokenizer struct {
	name         string
	rules        string // as preRules writes them
	ignoreMerges bool
}

// ggufPreTokenizers lists the pre-tokenizers. Of equal rules the first one is written.
func ggufPreTokenizers() []ggufPreTokenizer {
	list := []ggufPreTokenizer{
		{name: "gpt-2", rules: splitRule(gpt2Pattern)}, {name: "smollm", rules: digitRule + splitRule(gpt2Pattern)},
		{name: "llama-bpe", rules: splitRule(gpt4Pattern), ignoreMerges: true}, {name: "dbrx", rules: splitRule(gpt4Pattern)},
		{name: "qwen2", rules: splitRule(qwenPattern)}, {name: "gpt-4o", rules: splitRule(gpt4oPattern)},
		{name: "tekken", rules: splitRule(tekkenPattern), ignoreMerges: true},
	}
	aliases := map[string]string{"llama3": "llama-bpe", "llama-v3": "llama-bpe", "smaug-bpe": "dbrx", "olmo": "gpt-2",
		"starcoder": "smollm",
		"refact":    "smollm", "command-r": "smollm", "codeshell": "smollm", "exaone": "smollm", "stablelm2": "qwen2", "hunyuan": "qwen2",
		"chatglm-bpe": "dbrx", "mpt": "gpt-2", "jais": "gpt-2"}
	for _, alias := range slices.Sorted(maps.Keys(aliases)) {
		p := list[slices.IndexFunc(list, func(p ggufPreTokenizer) bool { return p.name == aliases[alias] })]
		p.name = alias
		list = append(list, p)
	}
	return list
}

// Patterns of published tokenizers.
const (
	gpt4Pattern   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwenPattern   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen35Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	gpt4oPattern  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	tekkenPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

const digitRule = "digits\n"

func splitRule(pattern string) string { return "split " + pattern + "\n" }

// preRules writes a pre_tokenizer that ends in ByteLevel as one line for each rule.
func preRules(raw json.RawMessage, depth int) (string, error) {
	if isNull(raw) {
		return "", nil
	}
	p, err := readPart(raw, depth)
	if err != nil {
		return "", err
	}
	var fields struct {
		sequenceFields
		byteLevelFields
		splitFields
		digitsFields
	}
	if err := p.read(&fields); err != nil {
		return "", err
	}
	regex, isolates := fields.isolates()
	switch {
	case p.Type == "Sequence":
		var all string
		for _, r := range fields.Pretokenizers {
			rules, err := preRules(r, depth+1)
			if err != nil {
				return "", err
			}
			all += rules
		}
		return all, nil
	case p.Type == "ByteLevel" && !fields.cuts():
		return "", nil
	case p.Type == "ByteLevel":
		return splitRule(gpt2Pattern), nil
	case p.Type == "Digits" && fields.Individual, p.Type == "Split" && isolates && regex == `\p{N}`:
		return digitRule, nil
	case p.Type == "Split" && isolates:
		return splitRule(regex), nil
	}
	return "other " + p.Type + "\n", nil
}

// GGUF returns the metadata of a tokenizer in a file of a model with vocab tokens. note gets messages for the user
// about what llama.cpp does otherwise. A tokenizer that llama.cpp does not have is an error.
func GGUF(t Tokenizer, vocab int, note func(format string, args ...any)) ([]gguf.Key, error) {
	f, err := parse(t.Name(), t.JSON(), description{})
	if err != nil {
		return nil, err
	}
	m, ok := f.model.(*bpe)
	if !ok {
		return nil, fmt.Errorf("tokenizer %s: a Unigram model, expected BPE for GGUF", t.Name())
	}
	var description file
	if err := json.Unmarshal(f.json, &description); err != nil {
		return nil, jsonError(err)
	}
	tokens, types := f.ggufVocabulary(m, description.AddedTokens, vocab)
	keys := []gguf.Key{{Name: ggufTokens, Value: tokens}, {Name: ggufTypes, Value: types}}
	var own []gguf.Key
	if m.byteLevel {
		own, err = m.ggufByteLevel(description, note)
	} else {
		own, err = f.ggufSentencePiece(m, vocab)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", t.Name(), err)
	}
	framing, err := ggufFraming(t, note)
	if err != nil {
		return nil, err
	}
	keys = slices.Concat(own, keys, framing, t.Special().gguf())
	noteEnds(t, tokens, note)
	if len(t.Special().Ends) == 0 {
		note("the tokenizer %s has no token that ends a document: llama.cpp takes token %d for it", t.Name(), ggufDefaultEOS(m))
	}
	if m.unk >= 0 {
		keys = append(keys, gguf.Key{Name: ggufUnknown, Value: uint32(m.unk)})
	}
	return keys, nil
}

// ggufDefaultEOS is the end of a document that llama.cpp assumes where a file names none.
func ggufDefaultEOS(m *bpe) int {
	if m.byteLevel {
		return 11
	}
	return 2
}

// ggufVocabulary lists the spellings and kinds of vocab tokens.
func (t *fileTokenizer) ggufVocabulary(m *bpe, added []addedToken, vocab int) (tokens []string, types []int32) {
	special := map[int64]bool{}
	for _, a := range added {
		special[a.ID] = a.Special
	}
	for id := range vocab {
		s, kind := t.spelling(uint32(id)), int32(normalPiece)
		_, isAdded := t.added.spelled[uint32(id)]
		switch {
		case s == "":
			s, kind = fmt.Sprintf("[PAD%d]", id), unusedPiece
		case m.unk == int64(id):
			kind = unknownPiece
		case special[int64(id)]:
			kind = controlPiece
		case isAdded:
			kind = userDefinedPiece
		case !m.byteLevel && slices.Contains(m.byteIDs[:], int64(id)):
			kind = bytePiece
		}
		tokens, types = append(tokens, s), append(types, kind)
	}
	return tokens, types
}

// ggufByteLevel returns the merges and the name of the pre-tokenizer.
func (m *bpe) ggufByteLevel(f file, note func(format string, args ...any)) ([]gguf.Key, error) {
	if m.prefix != "" || m.suffix != "" {
		return nil, errors.New("continuing_subword_prefix or end_of_word_suffix is set, which llama.cpp does not have")
	}
	if !isNull(f.Normalizer) {
		p, err := readPart(f.Normalizer, 0)
		if err != nil {
			return nil, err
		}
		if p.Type != "NFC" {
			return nil, fmt.Errorf("normalizer %s, expected none or NFC for GGUF", p.Type)
		}
		note("llama.cpp does not normalize text to NFC, as the tokenizer does")
	}
	merges := m.ggufMergeList()
	if len(merges) == 0 {
		merges = []string{dummyMerge}
		return []gguf.Key{{Name: ggufModel, Value: "gpt2"}, {Name: ggufPre, Value: "gpt-2"}, {Name: ggufMerges, Value: merges}}, nil
	}
	rules, err := preRules(f.PreTokenizer, 0)
	if err != nil {
		return nil, err
	}
	if strings.Contains(string(f.PreTokenizer), `"add_prefix_space":true`) {
		note("llama.cpp puts no space in front of a text, as the tokenizer does")
	}
	var fits []ggufPreTokenizer
	for _, p := range ggufPreTokenizers() {
		if p.rules == rules {
			fits = append(fits, p)
		}
	}
	if len(fits) == 0 {
		return nil, fmt.Errorf("pre_tokenizer: llama.cpp has none with the rules %q, expected those of GPT-2, SmolLM, Llama 3, Qwen2, GPT-4o or Tekken", rules)
	}
	i := max(slices.IndexFunc(fits, func(p ggufPreTokenizer) bool { return p.ignoreMerges == m.ignoreMerges }), 0)
	return []gguf.Key{{Name: ggufModel, Value: "gpt2"}, {Name: ggufPre, Value: fits[i].name}, {Name: ggufMerges, Value: merges}}, nil
}

// ggufMergeList lists the merges in order, spelled as "a b".
func (m *bpe) ggufMergeList() []string {
	type ranked struct {
		rank uint32
		pair uint64
	}
	var list []ranked
	for pair, c := range m.merges {
		list = append(list, ranked{c.rank, pair})
	}
	slices.SortFunc(list, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	out := make([]string, len(list))
	for i, c := range list {
		out[i] = m.tokens[c.pair>>32] + " " + m.tokens[uint32(c.pair)]
	}
	return out
}

// ggufSentencePiece returns the scores of a vocabulary of characters, as SentencePiece has them: a token that an
// earlier merge makes has the larger score.
func (t *fileTokenizer) ggufSentencePiece(m *bpe, vocab int) ([]gguf.Key, error) {
	spaced, err := t.Encode([]byte("a"))
	if err != nil {
		return nil, err
	}
	inner, err := t.Encode([]byte("a a"))
	if err != nil {
		return nil, err
	}
	spelled := ""
	for _, id := range inner {
		spelled += t.spelling(id)
	}
	if !m.byteFallback || m.byteIDs[0] < 0 || !strings.HasSuffix(spelled, "a▁a") {
		return nil, errors.New("a BPE of characters that does not write spaces as ▁ and other characters as bytes, as SentencePiece does, which llama.cpp does not have")
	}
	scores := make([]float32, max(vocab, t.size))
	made := make([]bool, len(scores))
	for _, c := range m.merges {
		if s := -float32(c.rank) - 1; !made[c.id] || s > scores[c.id] {
			scores[c.id], made[c.id] = s, true
		}
	}
	return []gguf.Key{{Name: ggufModel, Value: "llama"}, {Name: ggufPre, Value: "default"}, {Name: ggufScores, Value: scores},
		{Name: ggufSpacePrefix, Value: strings.HasPrefix(t.spelling(spaced[0]), "▁")}}, nil
}

// fromGGUF returns the content of a tokenizer.json that encodes as the tokenizer of a GGUF file, and what belongs to
// it.
func fromGGUF(f *gguf.File) (text []byte, d description, err error) {
	tokens := ggufValue[[]string](f, ggufTokens)
	types := ggufValue[[]int64](f, ggufTypes)
	if len(tokens) == 0 {
		return nil, d, fmt.Errorf("%s: missing, expected the tokens of the vocabulary", ggufTokens)
	}
	if types == nil {
		types = slices.Repeat([]int64{normalPiece}, len(tokens))
	}
	if len(types) != len(tokens) {
		return nil, d, fmt.Errorf("%s: %d kinds of %d tokens", ggufTypes, len(types), len(tokens))
	}
	if d, err = ggufDescription(f, tokens, types); err != nil {
		return nil, d, err
	}
	switch model, _ := f.Key(ggufModel); model {
	case "gpt2":
		text, err = byteLevelFromGGUF(f, tokens, types)
	case "llama":
		text, err = sentencePieceFromGGUF(f, tokens, types)
	default:
		err = fmt.Errorf("%s: found %v, expected gpt2 or llama", ggufModel, model)
	}
	return text, d, err
}

// ggufValue is a key's value, or the zero value if it has another type.
func ggufValue[T any](f *gguf.File, key string) T {
	v, _ := f.Key(key)
	x, _ := v.(T)
	return x
}

func byteLevelFromGGUF(f *gguf.File, tokens []string, types []int64) ([]byte, error) {
	pre := ggufValue[string](f, ggufPre)
	known := ggufPreTokenizers()
	i := slices.IndexFunc(known, func(p ggufPreTokenizer) bool { return p.name == pre })
	if i < 0 {
		var names []string
		for _, p := range known {
			names = append(names, p.name)
		}
		return nil, fmt.Errorf("%s: found %q, expected one of %s", ggufPre, pre, strings.Join(names, ", "))
	}
	vocab, added := map[string]int{}, []addedToken{}
	for id, s := range tokens {
		switch types[id] {
		case unusedPiece:
		case controlPiece, userDefinedPiece:
			added = append(added, addedToken{ID: int64(id), Content: s, Special: types[id] == controlPiece})
			fallthrough
		default:
			if other, twice := vocab[s]; twice {
				return nil, fmt.Errorf("%s: token %q has the ids %d and %d", ggufTokens, s, other, id)
			}
			vocab[s] = id
		}
	}
	merges := [][2]string{}
	for n, m := range ggufValue[[]string](f, ggufMerges) {
		a, b, ok := strings.Cut(m, " ")
		if !ok {
			return nil, fmt.Errorf("%s: number %d: %q, expected two tokens", ggufMerges, n, m)
		}
		_, left := vocab[a]
		_, right := vocab[b]
		if left || right { // others never happen
			merges = append(merges, [2]string{a, b})
		}
	}
	var rules []object
	for _, rule := range strings.Split(strings.TrimSuffix(known[i].rules, "\n"), "\n") {
		pattern, split := strings.CutPrefix(rule, "split ")
		if !split {
			rules = append(rules, object{"type": "Digits", "individual_digits": true})
			continue
		}
		rules = append(rules, object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false})
	}
	byteLevel := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	return json.Marshal(object{"version": "1.0", "added_tokens": added, "normalizer": nil, "post_processor": nil, "decoder": byteLevel,
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": append(rules, byteLevel)},
		"model":         object{"type": "BPE", "ignore_merges": known[i].ignoreMerges, "vocab": vocab, "merges": merges}})
}

func sentencePieceFromGGUF(f *gguf.File, tokens []string, types []int64) ([]byte, error) {
	scores := ggufValue[[]float64](f, ggufScores)
	if len(scores) != len(tokens) {
		return nil, fmt.Errorf("%s: %d scores of %d tokens", ggufScores, len(scores), len(tokens))
	}
	m := &sentencePiece{algorithm: 2, escape: true, dummyPrefix: true}
	if v, ok := f.Key(ggufSpacePrefix); ok {
		m.dummyPrefix, _ = v.(bool)
	}
	n := len(tokens) // without padding
	for n > 0 && types[n-1] == unusedPiece {
		n--
	}
	for id, s := range tokens[:n] {
		m.byteFallback = m.byteFallback || types[id] == bytePiece
		m.pieces = append(m.pieces, piece{text: s, score: float32(scores[id]), kind: uint64(max(types[id], 0))})
	}
	return m.tokenizerJSON()
}
