package tokenizer

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// This file reads a SentencePiece model as classes of transformers 5.23 do, which have rules of their own: they keep
// repeated spaces and the characters of a text, and order merges by the ids of tokens.

// Names of classes of transformers.
const (
	llamaClass   = "LlamaTokenizer"
	gemmaClass   = "GemmaTokenizer"
	backendClass = "TokenizersBackend"
)

// modelClasses are the classes that are read, by the names that folders give them, without "Fast".
var modelClasses = map[string]modelClass{
	llamaClass: {(*sentencePiece).llama, map[string]string{RoleUnknown: "<unk>", RoleBOS: "<s>", RoleEOS: "</s>"}},
	gemmaClass: {(*sentencePiece).gemma, map[string]string{RoleUnknown: "<unk>", RoleBOS: "<bos>", RoleEOS: "<eos>", RolePad: "<pad>",
		"mask_token": "<mask>"}},
	backendClass: {(*sentencePiece).backend, nil}, // the model itself gives roles
}

// modelClass is a class of transformers.
type modelClass struct {
	build func(m *sentencePiece, c classConfig) (object, error)
	roles map[string]string
}

// classConfig is what tokenizer_config.json says to a class, and the text of unk_token.
type classConfig struct {
	legacy      bool
	prefixSpace bool
	unknown     string
}

// backendTypes are the types of models whose tokenizer AutoTokenizer makes a TokenizersBackend, whatever class a folder
// names. Of the types in modelTypes, too, the class does not depend on the one that a folder names.
var backendTypes = strings.Fields(`
EvollaModel arctic aria beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5 ernie4_5_moe
flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode
gradium_phonon_tts granite granitemoe granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm
internlm2 internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava llava_next mimo_v2_flash minicpm3
minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3 mistral_large4
mixtral modernbert modernbert-decoder molmo molmo2 nemo_speechlm nemotron nvfp4 nystromformer olmo2 olmo3
olmo_hybrid opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral pocket_tts
smolvlm stablelm step3_vl umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl`)

var modelTypes = map[string]string{"hyperclovax_vision_v2": "GPT2Tokenizer", "qwen2": "Qwen2Tokenizer", "qwen3_5": "Qwen3_5Tokenizer",
	"qwen3_5_moe": "Qwen3_5Tokenizer", "qwen3_5_moe_text": "Qwen3_5Tokenizer", "qwen4_exp": "Qwen3_5Tokenizer", "siglip2": "Siglip2Tokenizer"}

// defaultTypes are the types of models of known classes, which count where a folder names no class.
var defaultTypes = map[string]string{"": backendClass, "llama": backendClass, "gemma": gemmaClass, "gemma2": gemmaClass, "gemma3": gemmaClass,
	"gemma3_text": gemmaClass, "gemma3n": gemmaClass, "gemma3n_text": gemmaClass, "recurrent_gemma": gemmaClass}

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
	path := filepath.Join(folder, ConfigFile)
	refuse := func(format string, args ...any) (modelClass, error) {
		return modelClass{}, fmt.Errorf("%s: %s: expected a %s, as save_pretrained of its transformers tokenizer writes, or the path of %s itself, which has SentencePiece's rules",
			path, fmt.Sprintf(format, args...), File, SentencePieceFile)
	}
	var named, ofModel struct {
		Class   *string         `json:"tokenizer_class"`
		Type    *string         `json:"model_type"`
		AutoMap json.RawMessage `json:"auto_map"`
	}
	if err := readInto(path, &named); err != nil {
		return modelClass{}, err
	}
	if err := readInto(filepath.Join(folder, modelFileName), &ofModel); err != nil {
		return modelClass{}, err
	}
	class, kind := strings.TrimSuffix(cmp.Or(deref(named.Class), deref(ofModel.Class)), "Fast"), deref(ofModel.Type)
	fixed := modelTypes[kind]
	if slices.Contains(backendTypes, kind) {
		fixed = backendClass
	}
	switch {
	case !isNull(named.AutoMap) && class == "":
		return refuse("auto_map names code of its own and tokenizer_class no class")
	case !isNull(named.AutoMap): // a class of transformers goes before code of the folder
	case fixed != "":
		class = fixed
	case class == "":
		if class = defaultTypes[kind]; class == "" {
			return refuse("found no tokenizer_class, and that of model_type %q is not known", kind)
		}
	}
	if class == "PreTrainedTokenizer" {
		class = backendClass
	}
	found, ok := modelClasses[class]
	if !ok {
		return refuse("tokenizer_class is %q, whose rules for %s are not known", class, SentencePieceFile)
	}
	return found, nil
}

// readInto reads a file that holds a JSON object, if there is one.
func readInto(path string, to any) error {
	fields, err := readObject(path)
	if err != nil || fields == nil {
		return err
	}
	data, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, jsonError(err))
	}
	return nil
}

// readClassConfig reads what tokenizer_config.json says to a class.
func readClassConfig(path string) (c classConfig, err error) {
	var keys struct {
		Legacy bool  `json:"legacy"` // null is false
		Prefix *bool `json:"add_prefix_space"`
		Split  bool  `json:"split_special_tokens"`
	}
	if err = readInto(path, &keys); err == nil && keys.Split {
		err = fmt.Errorf("%s: split_special_tokens is true: expected false, and data.special_text: text in its place", path)
	}
	return classConfig{legacy: keys.Legacy, prefixSpace: keys.Prefix == nil || *keys.Prefix}, err
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
			list = append(list, sideToken{addedToken: addedToken{ID: -1, Content: p.text, Special: p.kind == controlPiece}, from: SentencePieceFile})
		}
	}
	return list
}

// llama is LlamaTokenizer, which drops characters that have neither a token nor tokens of their bytes.
func (m *sentencePiece) llama(c classConfig) (object, error) {
	for b := range 256 {
		name := fmt.Sprintf("<0x%02X>", b)
		if !slices.ContainsFunc(m.pieces, func(p piece) bool { return p.text == name }) {
			return nil, fmt.Errorf("tokenizer_class is %s, which loses characters without a token, and %s has no token %s: expected one for each byte",
				llamaClass, SentencePieceFile, name)
		}
	}
	scheme, decoders := "never", modelDecoders()
	switch {
	case c.prefixSpace && c.legacy:
		scheme = "always"
	case c.prefixSpace:
		scheme = "first"
	}
	if c.prefixSpace {
		decoders = append(decoders, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	return object{"model": m.idBPE("", true), "normalizer": nil, "decoder": sequenceOf("decoders", decoders),
		"pre_tokenizer": object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false}}, nil
}

// gemma is GemmaTokenizer.
func (m *sentencePiece) gemma(c classConfig) (object, error) {
	return object{"model": m.idBPE(c.unknown, true), "normalizer": spacesMarked(), "decoder": sequenceOf("decoders", modelDecoders()),
		"pre_tokenizer": object{"type": "Split", "pattern": object{"String": " "}, "behavior": "MergedWithPrevious", "invert": false}}, nil
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
	return object{"model": model, "normalizer": sequenceOf("normalizers", normalizers), "decoder": sequenceOf("decoders", decoders), "pre_tokenizer": nil}, nil
}

func sequenceOf(key string, parts []object) object { return object{"type": "Sequence", key: parts} }

func spacesMarked() object {
	return object{"type": "Replace", "pattern": object{"String": " "}, "content": "▁"}
}

func modelDecoders() []object {
	return []object{{"type": "Replace", "pattern": object{"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}}
}

// idBPE is the BPE that transformers makes of the pieces of any model: every pair of pieces that is a piece together is
// a merge, in the order of ids.
func (m *sentencePiece) idBPE(unknown string, byteFallback bool) object {
	vocab := map[string]int{}
	for id, p := range m.pieces {
		vocab[p.text] = id
	}
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
