package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Values of Framing.SpecialText.
const (
	SpecialAsToken = "token" // a special token that is spelled out in a text is that token
	SpecialAsText  = "text"  // it is text as any other
)

// Values of Framing.BOS.
const (
	BOSNever  = "false"
	BOSAlways = "true"
	BOSAuto   = "auto" // as the tokenizer itself does
)

// Framing says how the text of a document becomes tokens. Empty fields mean SpecialAsToken and BOSNever.
type Framing struct {
	SpecialText string
	BOS         string
}

// Framed encodes documents with a framing.
type Framed struct {
	Tokenizer
	encoder Tokenizer
	front   []uint32
}

// Frame returns t with a framing. Without a begin token, BOSAlways is an error, as is BOSAuto with a tokenizer that
// puts something else than its end of text after a text.
func (f Framing) Frame(t Tokenizer) (*Framed, error) {
	out := &Framed{Tokenizer: t, encoder: t}
	if file, ok := t.(*fileTokenizer); ok && f.SpecialText == SpecialAsText {
		out.encoder = file.withoutSpecial()
	}
	bos, known := t.Special().ID(RoleBOS)
	switch f.BOS {
	case BOSAlways:
		if !known {
			return nil, fmt.Errorf("the tokenizer %q has no token that begins a text", t.Name())
		}
		out.front = []uint32{bos}
	case BOSAuto:
		front, back, err := Around(t)
		if err != nil {
			return nil, fmt.Errorf("tokenizer %q: post_processor: %w", t.Name(), err)
		}
		if end, ok := t.EOS(); len(back) > 0 && (!ok || !slices.Equal(back, []uint32{end})) {
			return nil, fmt.Errorf("the tokenizer %q puts the tokens %d after a text, expected its end of text alone", t.Name(), back)
		}
		out.front = front
	}
	return out, nil
}

// EncodePart encodes as the tokenizer does, after what the framing puts before a document.
func (f *Framed) EncodePart(text []byte, first bool) ([]uint32, error) {
	ids, err := f.encoder.EncodePart(text, first)
	if first && len(f.front) > 0 && err == nil {
		ids = slices.Concat(f.front, ids)
	}
	return ids, err
}

// Encode encodes a whole document.
func (f *Framed) Encode(text []byte) ([]uint32, error) { return f.EncodePart(text, true) }

// withoutSpecial is the tokenizer to which special tokens in texts are text, as Hugging Face's library with
// encode_special_tokens.
func (t *fileTokenizer) withoutSpecial() *fileTokenizer {
	out := &fileTokenizer{name: t.name, hash: t.hash, json: t.json, model: t.model, normalize: t.normalize, pre: t.pre, decode: t.decode,
		special: t.special, restarts: t.restarts, added: t.added, size: t.size, text: t.text}
	out.added.raw.asText, out.added.normalized.asText = true, true
	return out
}

// postProcessor is what a tokenizer.json puts around the tokens of a text.
type postProcessor struct {
	Type       string                     `json:"type"`
	Processors []json.RawMessage          `json:"processors"` // of a Sequence
	Single     []templatePiece            `json:"single"`     // of a TemplateProcessing
	Special    map[string]templateSpecial `json:"special_tokens"`
	CLS        json.RawMessage            `json:"cls"` // of Bert and Roberta: a token and its number
	SEP        json.RawMessage            `json:"sep"`
}

type templatePiece struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

type templateSpecial struct {
	IDs []uint32 `json:"ids"`
}

// Around returns the tokens that the tokenizer's post-processor puts before and after a text.
func Around(t Tokenizer) (front, back []uint32, err error) {
	raw, err := postProcessorOf(t.JSON())
	if err != nil || isNull(raw) {
		return nil, nil, err
	}
	return postProcess(raw)
}

// frame gives a tokenizer the post-processor of transformers for add_bos_token and add_eos_token, if files say any of
// them, or the class of its folder.
func (d description) frame(t *fileTokenizer) error {
	around := d.around
	if (d.addBOS != nil || d.addEOS != nil) && (around == nil || *around == [2]string{}) {
		around = &[2]string{roleIf(d.addBOS, RoleBOS), roleIf(d.addEOS, RoleEOS)}
	}
	raw, err := postProcessorOf(t.json)
	if err != nil || around == nil {
		return err
	}
	var want [2][]uint32
	special := object{}
	text := func(id string, kind int) any { return object{"Sequence": object{"id": id, "type_id": kind}} }
	single := []any{text("A", 0)}
	for i, role := range around {
		token, ok := t.special.Roles[role]
		if !ok {
			continue
		}
		want[i] = []uint32{token.ID}
		single = slices.Insert(single, i*len(single), any(object{"SpecialToken": object{"id": token.Text, "type_id": 0}}))
		special[token.Text] = object{"id": token.Text, "ids": want[i], "tokens": []string{token.Text}}
	}
	if front, back, err := postProcess(raw); err == nil && slices.Equal(front, want[0]) && slices.Equal(back, want[1]) {
		return nil
	}
	var post any
	if len(special) > 0 {
		post = object{"type": "TemplateProcessing", "single": single, "pair": append(slices.Clone(single), text("B", 1)),
			"special_tokens": special}
	}
	if t.json, err = withField(t.json, "post_processor", post); err == nil {
		t.hash = hashOf(t.json)
	}
	return err
}

func roleIf(asked *bool, role string) string {
	if is(asked, false) {
		return role
	}
	return ""
}

// Is reports whether a hash identifies a tokenizer, be it by Hash of an earlier version, which left out what flags
// beside the tokenizer put around a text. Checkpoints keep the flags as the post-processor of a tokenizer.json.
func Is(t Tokenizer, hash string) bool {
	if framed, ok := t.(*Framed); ok {
		t = framed.Tokenizer
	}
	if hash == t.Hash() {
		return true
	}
	f, ok := t.(*fileTokenizer)
	if !ok {
		return false
	}
	bare, err := withField(f.json, "post_processor", nil)
	return err == nil && (hash == hashOf(bare) || hash == hashOf(bytes.TrimSuffix(bare, []byte("\n"))))
}

// postProcessorOf returns the post-processor of a tokenizer.json.
func postProcessorOf(tokenizerJSON []byte) (json.RawMessage, error) {
	var f struct {
		PostProcessor json.RawMessage `json:"post_processor"`
	}
	if err := json.Unmarshal(tokenizerJSON, &f); err != nil {
		return nil, jsonError(err)
	}
	return f.PostProcessor, nil
}

// postProcess returns the tokens that a post-processor puts before and after a single text.
func postProcess(raw json.RawMessage) (front, back []uint32, err error) {
	if isNull(raw) {
		return nil, nil, nil
	}
	var p postProcessor
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, nil, jsonError(err)
	}
	switch p.Type {
	case "ByteLevel": // moves offsets only
		return nil, nil, nil
	case "Sequence":
		for _, inner := range p.Processors {
			before, after, err := postProcess(inner)
			if err != nil {
				return nil, nil, err
			}
			if len(before)+len(after) > 0 && len(front)+len(back) > 0 {
				return nil, nil, errors.New("several processors of a Sequence add tokens, expected one") // Hugging Face's library fails
			}
			front, back = append(front, before...), append(back, after...)
		}
		return front, back, nil
	case "TemplateProcessing":
		return p.template()
	case "BertProcessing", "RobertaProcessing":
		cls, err := numberedToken(p.CLS)
		sep, err2 := numberedToken(p.SEP)
		return []uint32{cls}, []uint32{sep}, errors.Join(err, err2)
	}
	return nil, nil, fmt.Errorf("type is %q: expected TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel or a Sequence",
		p.Type)
}

// template reads the template of a single text.
func (p postProcessor) template() (front, back []uint32, err error) {
	sequences := 0
	for _, piece := range p.Single {
		if piece.SpecialToken == nil {
			sequences++
			continue
		}
		token, ok := p.Special[piece.SpecialToken.ID]
		if !ok {
			return nil, nil, fmt.Errorf("special_tokens has no %q of the template", piece.SpecialToken.ID)
		}
		if sequences == 0 {
			front = append(front, token.IDs...)
		} else {
			back = append(back, token.IDs...)
		}
	}
	if sequences != 1 {
		return nil, nil, fmt.Errorf("the template of a single text has it %d times, expected once", sequences)
	}
	return front, back, nil
}

// numberedToken reads ["[CLS]", 101].
func numberedToken(raw json.RawMessage) (id uint32, err error) {
	var text string
	pair := []any{&text, &id}
	if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 {
		return 0, fmt.Errorf("%.40s: expected a token and its number", raw)
	}
	return id, nil
}
