package tokenizer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
)

// This file writes and reads the special tokens of GGUF files.

// ggufFraming tells llama.cpp whether a tokenizer puts its begin token before a text, and its end after it.
func ggufFraming(t Tokenizer, note func(format string, args ...any)) ([]gguf.Key, error) {
	front, back, err := Around(t)
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: post_processor: %w", t.Name(), err)
	}
	is := func(ids []uint32, role string) bool {
		id, ok := t.Special().ID(role)
		return ok && slices.Equal(ids, []uint32{id})
	}
	bos, eos := is(front, RoleBOS), is(back, RoleEOS)
	if len(front) > 0 && !bos || len(back) > 0 && !eos {
		note("llama.cpp does not put the tokens %d and %d around a text, as the tokenizer %s does", front, back, t.Name())
	}
	return []gguf.Key{{Name: ggufAddBOS, Value: bos}, {Name: ggufAddEOS, Value: eos}}, nil
}

// gguf lists the keys of special tokens and chat templates. llama.cpp has three ends of a text.
func (s *Special) gguf() []gguf.Key {
	var keys []gguf.Key
	for _, r := range []struct{ role, key string }{{RoleBOS, ggufBOS}, {RolePad, ggufPad}} {
		if id, ok := s.ID(r.role); ok {
			keys = append(keys, gguf.Key{Name: r.key, Value: id})
		}
	}
	for i, id := range s.ggufEnds() {
		keys = append(keys, gguf.Key{Name: ggufEnds[i], Value: id})
	}
	if len(s.Ends) > 0 {
		ends := make([]int32, len(s.Ends))
		for i, id := range s.Ends {
			ends[i] = int32(id)
		}
		keys = append(keys, gguf.Key{Name: ggufAllEnds, Value: ends})
	}
	var names []string
	for _, t := range s.Templates {
		key := ggufTemplate
		if t.Name != DefaultTemplate {
			key += "." + t.Name
			names = append(names, t.Name)
		}
		keys = append(keys, gguf.Key{Name: key, Value: t.Source})
	}
	if len(names) > 0 {
		keys = append(keys, gguf.Key{Name: ggufTemplates, Value: names})
	}
	return keys
}

// ggufEnds are the keys of tokens that end a text.
var ggufEnds = []string{ggufEOS, ggufEOT, ggufEOM}

// ggufEnds are the ends that llama.cpp has keys for, in the order of the keys.
func (s *Special) ggufEnds() []uint32 {
	ends := s.WrittenFirst()
	return ends[:min(len(ends), len(ggufEnds))]
}

// ggufEndNames are spellings of tokens that end a text for llama.cpp, whatever the keys say.
var ggufEndNames = []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
	"<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>", "<end_of_utterance>"}

// ggufEndsByKeyOrName are further tokens that end a text: the token of a key or, without it, the first with one of
// these spellings.
var ggufEndsByKeyOrName = []struct {
	key   string
	names []string
}{
	{ggufEOT, []string{"<｜end▁of▁sentence｜>"}},
	{"tokenizer.ggml.fim_pad_token_id", []string{"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"}},
	{"tokenizer.ggml.fim_rep_token_id", []string{"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
	{"tokenizer.ggml.fim_sep_token_id", []string{"<|file_sep|>"}},
}

// ggufNamedEnds lists the tokens that end a text for llama.cpp besides the tokens of keys, by id. has reports whether
// the file has a key.
func ggufNamedEnds(tokens []string, has func(key string) bool) (ends []uint32) {
	ids := make(map[string]uint32, len(tokens))
	for id, s := range tokens {
		ids[s] = uint32(id)
	}
	known := func(s string) bool { _, ok := ids[s]; return ok }
	calls := known("<|call|>") || known("<|calls|>")
	for _, s := range ggufEndNames {
		if s == "<|end|>" && calls && (known("<|return|>") || known("<|flush|>")) {
			continue // it ends a message, and not the answer, where calls do
		}
		if id, ok := ids[s]; ok {
			ends = append(ends, id)
		}
	}
	for _, e := range ggufEndsByKeyOrName {
		if i := slices.IndexFunc(e.names, known); i >= 0 && !has(e.key) && !(e.key == ggufEOT && len(ends) > 0) {
			ends = append(ends, ids[e.names[i]])
		}
	}
	slices.Sort(ends)
	return ends
}

// noteEnds reports ends that llama.cpp does not have, and those that it has besides.
func noteEnds(t Tokenizer, tokens []string, note func(format string, args ...any)) {
	s := t.Special()
	theirs := slices.Concat(s.ggufEnds(), ggufNamedEnds(tokens, func(key string) bool { return key == ggufEOT && len(s.Ends) > 1 }))
	without := func(all, some []uint32) (rest []uint32) {
		for _, id := range all {
			if !slices.Contains(some, id) && !slices.Contains(rest, id) {
				rest = append(rest, id)
			}
		}
		return rest
	}
	if left := without(s.WrittenFirst(), theirs); len(left) > 0 {
		note("llama.cpp has %d keys of tokens that end a text: it goes on after the ends %d of the tokenizer %s", len(ggufEnds), left,
			t.Name())
	}
	if more := without(theirs, s.Ends); len(more) > 0 {
		note("llama.cpp ends a text also at the tokens %d, by their names", more)
	}
}

// ggufDescription reads the special tokens and chat templates of a GGUF file. As llama.cpp does, it makes a control
// token of each that ends a text by its name.
func ggufDescription(f *gguf.File, tokens []string, types []int64) (d description, err error) {
	d.roles = map[string]addedToken{}
	token := func(key string) (id uint32, ok bool) {
		v, has := f.Key(key)
		n, isNumber := v.(int64)
		if has && (!isNumber || n < 0 || n >= int64(len(tokens))) && err == nil {
			err = fmt.Errorf("%s: found %v, expected the number of a token, from 0 to %d", key, v, len(tokens)-1)
		}
		return uint32(n), has && err == nil
	}
	for _, r := range []struct{ role, key string }{{RoleBOS, ggufBOS}, {RoleEOS, ggufEOS}, {RolePad, ggufPad}, {RoleUnknown, ggufUnknown}} {
		if id, ok := token(r.key); ok {
			d.roles[r.role] = addedToken{Content: tokens[id]}
		}
	}
	for _, key := range ggufEnds {
		if id, ok := token(key); ok {
			d.ends = append(d.ends, id)
		}
	}
	d.endsFrom = strings.Join(ggufEnds, ", ")
	for _, e := range ggufEndsByKeyOrName[1:] {
		if id, ok := token(e.key); ok {
			d.ends = append(d.ends, id)
		}
	}
	if own := ggufOwnEnds(f, d.ends); own != nil {
		d.ends = own
	} else if err == nil {
		named := ggufNamedEnds(tokens, func(key string) bool { _, ok := f.Key(key); return ok })
		for _, id := range named {
			types[id] = controlPiece
		}
		d.ends = append(d.ends, named...)
	}
	for _, name := range append([]string{DefaultTemplate}, ggufValue[[]string](f, ggufTemplates)...) {
		key := ggufTemplate
		if name != DefaultTemplate {
			key += "." + name
		}
		if source := ggufValue[string](f, key); source != "" {
			d.templates = setTemplate(d.templates, name, source)
		}
	}
	bos, eos := ggufAddsBOS(f), ggufValue[bool](f, ggufAddEOS)
	d.addBOS, d.addEOS = &bos, &eos
	return d, err
}

// ggufOwnEnds are the ends of a file that this program wrote, if llama.cpp's keys still name the same ones.
func ggufOwnEnds(f *gguf.File, keyed []uint32) (ends []uint32) {
	for _, id := range ggufValue[[]int64](f, ggufAllEnds) {
		ends = append(ends, uint32(id))
	}
	for _, id := range keyed {
		if !slices.Contains(ends, id) {
			return nil
		}
	}
	if len(keyed) != min(len(ends), len(ggufEnds)) {
		return nil
	}
	return ends
}

// ggufAddsBOS reports whether llama.cpp puts RoleBOS before a text: as the key says or, without it, with
// SentencePiece's tokenizers and the pre-tokenizers that ignore merges.
func ggufAddsBOS(f *gguf.File) bool {
	if v, ok := f.Key(ggufAddBOS); ok {
		add, _ := v.(bool)
		return add
	}
	pre := ggufValue[string](f, ggufPre)
	return ggufValue[string](f, ggufModel) == "llama" ||
		slices.ContainsFunc(ggufPreTokenizers(), func(p ggufPreTokenizer) bool { return p.name == pre && p.ignoreMerges })
}
