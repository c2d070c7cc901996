package tokenizer

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"unicode/utf8"
)

// This file reads a SentencePiece model as classes of transformers 5.23 do, which have rules of their own: they keep
// repeated spaces and the characters of a text, and order merges by the ids of tokens.

// modelClasses are the classes that are read, by the names that folders give them, without "Fast".
var modelClasses = map[string]modelClass{
	llamaClass: {(*sentencePiece).llama, map[string]string{RoleUnknown: "<unk>", RoleBOS: "<s>", RoleEOS: "</s>"}},
	gemmaClass: {(*sentencePiece).gemma, map[string]string{RoleUnknown: "<unk>", RoleBOS: "<bos>", RoleEOS: "<eos>", RolePad: "<pad>",
		roleMask: "<mask>"}},
	backendClass: {(*sentencePiece).backend, nil}, // the model itself gives roles
}

// modelClass is a class of transformers.
type modelClass struct {
	build func(m *sentencePiece, c classConfig) (object, error)
	roles map[string]string
}

// fromModelFolder returns the content of a tokenizer.json that encodes as AutoTokenizer of transformers does with a
// folder of a SentencePiece model and a tokenizer_config.json. It completes d with what the class defines.
func fromModelFolder(folder string, data []byte, d *description) ([]byte, error) {
	path := filepath.Join(folder, ConfigFile)
	class, err := findModelClass(folder)
	if err != nil {
		return nil, err
	}
	config, err := readClassConfig(path)
	if err != nil {
		return nil, err
	}
	m, err := readSentencePiece(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(folder, SentencePieceFile), err)
	}
	roles := class.roles
	if roles == nil {
		roles = m.roles()
	}
	if d.extraOfMap {
		d.extra, d.extraOfMap = nil, false
	}
	d.setDefaults(path, roles)
	if !d.namesExtra {
		d.added = append(d.added, m.added()...)
	}
	config.unknown = d.roles[RoleUnknown].Content
	parts, err := class.build(m, config)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	parts["version"], parts["added_tokens"], parts["post_processor"] = "1.0", []addedToken{}, nil
	return json.Marshal(parts)
}

// findModelClass finds the class that AutoTokenizer takes for a folder.
func findModelClass(folder string) (modelClass, error) {
	refuse := func(format string, args ...any) (modelClass, error) {
		return modelClass{}, fmt.Errorf("%s: %s: expected a %s, as save_pretrained of its transformers tokenizer writes, or the path of %s itself, which has SentencePiece's rules",
			filepath.Join(folder, ConfigFile), fmt.Sprintf(format, args...), File, SentencePieceFile)
	}
	class, err := findClass(folder, false)
	switch {
	case err != nil:
		return modelClass{}, err
	case class.ownCode:
		return refuse("auto_map names code of its own and tokenizer_class no class")
	case class.name == "":
		return refuse("found no tokenizer_class, and that of model_type %q is not known", class.modelType)
	}
	found, ok := modelClasses[class.name]
	if !ok {
		return refuse("tokenizer_class is %q, whose rules for %s are not known", class.name, SentencePieceFile)
	}
	return found, nil
}

// roles are the tokens that the model itself names.
func (m *sentencePiece) roles() map[string]string {
	roles := map[string]string{}
	for _, r := range m.reserved {
		if r.id >= 0 {
			roles[r.role] = r.text
		}
	}
	return roles
}

// added are the pieces that are searched in a text before other rules apply.
func (m *sentencePiece) added() (list []sideToken) {
	for _, p := range m.pieces {
		if p.kind == controlPiece || p.kind == userDefinedPiece {
			list = append(list, sideToken{addedToken: addedToken{ID: -1, Content: p.text, Special: p.kind == controlPiece},
				from: SentencePieceFile})
		}
	}
	return list
}

// llama is LlamaTokenizer, which drops characters that have neither a token nor tokens of their bytes.
func (m *sentencePiece) llama(c classConfig) (object, error) {
	if err := wantBytes(m.ids(), SentencePieceFile); err != nil {
		return nil, err
	}
	parts := llamaParts(c)
	parts["model"], parts["normalizer"] = m.idBPE("", true), nil
	return parts, nil
}

// gemma is GemmaTokenizer.
func (m *sentencePiece) gemma(c classConfig) (object, error) {
	parts := gemmaParts(c)
	parts["model"] = m.idBPE(c.unknown, true)
	return parts, nil
}

// backend is TokenizersBackend, which has no class of its own.
func (m *sentencePiece) backend(classConfig) (object, error) {
	normalizers, decoders := []object{spacesMarked()}, modelDecoders()
	if len(m.charsMap) > 0 {
		precompiled := object{"type": "Precompiled", "precompiled_charsmap": base64.StdEncoding.EncodeToString(m.charsMap)}
		normalizers = slices.Insert(normalizers, 0, precompiled)
	}
	if !m.byteFallback {
		decoders = decoders[:1]
	}
	model := m.idBPE(m.reserved[0].text, m.byteFallback)
	if m.algorithm == 1 {
		model = m.model()
		if id := m.reserved[0].id; id >= 0 {
			model["unk_id"] = id
		}
	}
	return object{"model": model, "normalizer": sequenceOf("normalizers", normalizers), "decoder": sequenceOf("decoders", decoders),
		"pre_tokenizer": nil}, nil
}

func sequenceOf(key string, parts []object) object { return object{"type": "Sequence", key: parts} }

func spacesMarked() object {
	return object{"type": "Replace", "pattern": object{"String": " "}, "content": "▁"}
}

func modelDecoders() []object {
	return []object{{"type": "Replace", "pattern": object{"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}}
}

// ids are the ids of the pieces; of equal pieces the last.
func (m *sentencePiece) ids() map[string]int {
	ids := make(map[string]int, len(m.pieces))
	for id, p := range m.pieces {
		ids[p.text] = id
	}
	return ids
}

// idBPE is the BPE that transformers makes of the pieces of any model: every pair of pieces that is a piece together is
// a merge, in the order of ids.
func (m *sentencePiece) idBPE(unknown string, byteFallback bool) object {
	vocab := m.ids()
	merges := [][2]string{}
	for id, p := range m.pieces {
		if vocab[p.text] != id { // listed again
			continue
		}
		first := len(merges)
		for i := range p.text {
			if i == 0 {
				continue
			}
			left, right := p.text[:i], p.text[i:]
			_, l := vocab[left]
			if _, r := vocab[right]; l && r {
				merges = append(merges, [2]string{left, right})
			}
		}
		slices.SortFunc(merges[first:], func(a, b [2]string) int {
			return cmp.Compare(utf8.RuneCountInString(a[0]), utf8.RuneCountInString(b[0]))
		})
	}
	out := object{"type": "BPE", "vocab": vocab, "merges": merges, "fuse_unk": true, "byte_fallback": byteFallback}
	if unknown != "" {
		out["unk_token"] = unknown
	}
	return out
}
