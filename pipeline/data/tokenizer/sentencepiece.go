package tokenizer

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// SentencePieceFile is the name of SentencePiece's files, which older models have instead of a tokenizer.json.
const SentencePieceFile = "tokenizer.model"

// Kinds of pieces.
const (
	unknownPiece     = 2
	controlPiece     = 3
	userDefinedPiece = 4
)

// piece is a token of a SentencePiece model.
type piece struct {
	text  string
	score float32
	kind  uint64
}

// reserved reports whether no text becomes the piece.
func (p piece) reserved() bool {
	return p.kind == controlPiece || p.kind == unknownPiece || p.kind == bytePiece
}

// reservedPiece is a token with a role: the unknown token, the begin or the end of a text.
type reservedPiece struct {
	role string
	id   int32 // negative: there is none
	text string
}

// sentencePiece has the fields of SentencePiece's ModelProto that are read.
type sentencePiece struct {
	pieces       []piece
	algorithm    uint64 // 1: unigram, 2: BPE
	byteFallback bool
	suffix       bool             // a space ends a word instead of beginning it
	reserved     [3]reservedPiece // as TrainerSpec names them
	charsMap     []byte
	dummyPrefix  bool // a space is put in front of a text
	trim         bool // spaces at the ends of a text, and all but one of a run, are removed
	escape       bool // spaces are written as ▁
}

// fromSentencePiece returns the content of a tokenizer.json that encodes as a tokenizer.model does.
func fromSentencePiece(data []byte) ([]byte, error) {
	m, err := readSentencePiece(data)
	if err != nil {
		return nil, err
	}
	if m.suffix || !m.escape {
		return nil, errors.New("treat_whitespace_as_suffix is set or escape_whitespaces is not: expected a model whose words begin with ▁")
	}
	return m.tokenizerJSON()
}

// fields calls take with each field of a message. Numbers are varints or the bits of floats.
func fields(message []byte, take func(field protowire.Number, number uint64, data []byte) error) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var number uint64
		var data []byte
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(message)
		case protowire.Fixed32Type:
			var bits uint32
			bits, n = protowire.ConsumeFixed32(message)
			number = uint64(bits)
		case protowire.BytesType:
			data, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := take(field, number, data); err != nil {
			return err
		}
	}
	return nil
}

// readSentencePiece reads a ModelProto.
func readSentencePiece(data []byte) (*sentencePiece, error) {
	m := &sentencePiece{algorithm: 1, dummyPrefix: true, trim: true, escape: true,
		reserved: [3]reservedPiece{{RoleUnknown, 0, "<unk>"}, {RoleBOS, 1, "<s>"}, {RoleEOS, 2, "</s>"}}}
	err := fields(data, func(field protowire.Number, _ uint64, message []byte) error {
		switch field {
		case 1:
			return m.readPiece(message)
		case 2: // TrainerSpec
			return fields(message, func(field protowire.Number, number uint64, data []byte) error {
				switch field {
				case 3:
					m.algorithm = number
				case 24:
					m.suffix = number != 0
				case 35:
					m.byteFallback = number != 0
				case 40, 41, 42:
					m.reserved[field-40].id = int32(number)
				case 45, 46, 47:
					m.reserved[field-45].text = string(data)
				}
				return nil
			})
		case 3: // NormalizerSpec
			return fields(message, func(field protowire.Number, number uint64, data []byte) error {
				switch field {
				case 2:
					m.charsMap = data
				case 3:
					m.dummyPrefix = number != 0
				case 4:
					m.trim = number != 0
				case 5:
					m.escape = number != 0
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("not a SentencePiece model: %w", err)
	}
	switch {
	case len(m.pieces) == 0:
		return nil, errors.New("not a SentencePiece model: it has no pieces")
	case m.algorithm != 1 && m.algorithm != 2:
		return nil, fmt.Errorf("model_type is %d: expected 1 (unigram) or 2 (BPE)", m.algorithm)
	}
	return m, nil
}

func (m *sentencePiece) readPiece(message []byte) error {
	p := piece{kind: 1}
	err := fields(message, func(field protowire.Number, number uint64, data []byte) error {
		switch field {
		case 1:
			p.text = string(data)
		case 2:
			p.score = math.Float32frombits(uint32(number))
		case 3:
			p.kind = number
		}
		return nil
	})
	if err == nil && !utf8.ValidString(p.text) {
		err = fmt.Errorf("piece %d is not UTF-8", len(m.pieces))
	}
	m.pieces = append(m.pieces, p)
	return err
}

// object is a JSON object.
type object map[string]any

// tokenizerJSON is the content of a tokenizer.json that encodes alike, as Hugging Face's converter writes it.
func (m *sentencePiece) tokenizerJSON() ([]byte, error) {
	added, normalizers := []addedToken{}, []object{}
	for id, p := range m.pieces {
		if p.kind == controlPiece || p.kind == userDefinedPiece || p.kind == unknownPiece && m.algorithm == 2 {
			added = append(added, addedToken{ID: int64(id), Content: p.text, Special: p.kind != userDefinedPiece})
		}
	}
	replace := func(pattern object, with string) {
		normalizers = append(normalizers, object{"type": "Replace", "pattern": pattern, "content": with})
	}
	if len(m.charsMap) > 0 {
		normalizers = append(normalizers, object{"type": "Precompiled",
			"precompiled_charsmap": base64.StdEncoding.EncodeToString(m.charsMap),
			"longest":              true}) // a key that Hugging Face's library skips: it does not have this rule
	}
	if m.trim {
		replace(object{"Regex": `\A +| +\z`}, "")
		replace(object{"Regex": " {2,}"}, " ")
	}
	decoders := []object{{"type": "Replace", "pattern": object{"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}}
	if m.dummyPrefix {
		normalizers = append(normalizers, object{"type": "Prepend", "prepend": "▁"})
		decoders = append(decoders, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	replace(object{"String": " "}, "▁")
	return json.Marshal(object{"version": "1.0", "added_tokens": added, "pre_tokenizer": m.reservedSplit(), "post_processor": nil,
		"model":      m.model(),
		"normalizer": object{"type": "Sequence", "normalizers": normalizers}, "decoder": object{"type": "Sequence", "decoders": decoders}})
}

// reservedSplit is a pre-tokenizer that cuts texts such as <0x0A> behind their first character, for the Unigram model
// of a tokenizer.json takes bytes and the unknown token for texts; nil if that is not needed, or would cut other
// pieces.
func (m *sentencePiece) reservedSplit() any {
	if m.algorithm != 1 {
		return nil
	}
	var starts, patterns []string
	for _, p := range m.pieces {
		first, size := utf8.DecodeRuneInString(p.text)
		if !p.reserved() || p.kind == controlPiece || len(p.text) <= size {
			continue
		}
		_, second := utf8.DecodeRuneInString(p.text[size:])
		if start := p.text[:size+second]; !slices.Contains(starts, start) {
			starts = append(starts, start)
		}
		patterns = append(patterns, regexp.QuoteMeta(string(first))+"(?="+regexp.QuoteMeta(p.text[size:])+")")
	}
	for _, p := range m.pieces {
		if !p.reserved() && slices.ContainsFunc(starts, func(s string) bool { return strings.Contains(p.text, s) }) {
			return nil
		}
	}
	if len(patterns) == 0 {
		return nil
	}
	return object{"type": "Split", "pattern": object{"Regex": strings.Join(patterns, "|")}, "behavior": "MergedWithPrevious",
		"invert": false}
}

// model is the model of a tokenizer.json.
func (m *sentencePiece) model() object {
	out := object{"byte_fallback": m.byteFallback}
	unknown := slices.IndexFunc(m.pieces, func(p piece) bool { return p.kind == unknownPiece })
	if m.algorithm == 1 {
		var vocab [][2]any
		for _, p := range m.pieces {
			vocab = append(vocab, [2]any{p.text, float64(p.score)})
		}
		out["type"], out["vocab"] = "Unigram", vocab
		if unknown >= 0 {
			out["unk_id"] = unknown
		}
		return out
	}
	vocab := map[string]int{}
	for id, p := range m.pieces {
		vocab[p.text] = id
	}
	out["type"], out["vocab"], out["merges"], out["fuse_unk"] = "BPE", vocab, m.merges(vocab), true
	if unknown >= 0 {
		out["unk_token"] = m.pieces[unknown].text
	}
	return out
}

// merges lists the pairs of pieces that are a piece together. The piece with the larger score comes first:
// SentencePiece gives the pieces that it has merged first the largest scores.
func (m *sentencePiece) merges(vocab map[string]int) [][2]string {
	type pair struct {
		left, right string
		score       float32
	}
	var list []pair
	for _, p := range m.pieces {
		if p.reserved() {
			continue
		}
		first := len(list)
		for i := range p.text {
			if i == 0 {
				continue
			}
			left, right := p.text[:i], p.text[i:]
			if l, ok := vocab[left]; ok && !m.pieces[l].reserved() {
				if r, ok := vocab[right]; ok && !m.pieces[r].reserved() {
					list = append(list, pair{left, right, p.score})
				}
			}
		}
		slices.SortStableFunc(list[first:], func(a, b pair) int {
			return cmp.Or(cmp.Compare(vocab[a.left], vocab[b.left]), cmp.Compare(vocab[a.right], vocab[b.right]))
		})
	}
	length := utf8.RuneCountInString
	slices.SortStableFunc(list, func(a, b pair) int {
		return -cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(length(a.left), length(b.left)),
			cmp.Compare(length(a.right), length(b.right)))
	})
	out := make([][2]string, len(list))
	for i, p := range list {
		out[i] = [2]string{p.left, p.right}
	}
	return out
}
