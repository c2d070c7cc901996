package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// This file reads a tokenizer.json as classes of transformers 5.23 do. Some take its vocabulary, merges, added tokens
// and post-processor, and have normalizer, pre-tokenizer and decoder of their own.

// jsonClass is a class with parts of its own.
type jsonClass struct {
	model  string // the type of its model
	parts  func(c classConfig) object
	roles  map[string]string
	around *[2]string // roles of the tokens that it puts before and after a text; nil: the file says it
}

var separated = &[2]string{roleCLS, roleSEP}

// jsonClasses are the classes that are read, without "Fast".
var jsonClasses = map[string]jsonClass{
	llamaClass:   {model: "BPE", parts: llamaParts, roles: modelClasses[llamaClass].roles},
	gemmaClass:   {model: "BPE", parts: gemmaParts, roles: modelClasses[gemmaClass].roles},
	gpt2Class:    {model: "BPE", parts: gpt2Parts, roles: gpt2Roles},
	codegenClass: {model: "BPE", parts: gpt2Parts, roles: gpt2Roles},
	neoxClass:    {model: "BPE", parts: neoxParts, roles: neoxRoles, around: &[2]string{}},
	qwen2Class:   {model: "BPE", parts: splitParts(qwenPattern), roles: qwenRoles},
	qwen35Class:  {model: "BPE", parts: splitParts(qwen35Pattern), roles: qwenRoles},
	cohereClass:  {model: "BPE", parts: cohereParts, roles: cohereRoles},
	robertaClass: {model: "BPE", parts: gpt2Parts, roles: robertaRoles, around: separated},
	bertClass:    {model: "WordPiece", parts: bertParts, roles: bertRoles, around: separated},
}

// otherClasses have parts of their own, which are not known here.
var otherClasses = strings.Fields(`
AlbertTokenizer BarthezTokenizer BartphoTokenizer BertGenerationTokenizer BertJapaneseTokenizer BertweetTokenizer
BigBirdTokenizer BioGptTokenizer BlenderbotSmallTokenizer BlenderbotTokenizer ByT5Tokenizer CamembertTokenizer
CanineTokenizer CLIPTokenizer ClvpTokenizer CodeLlamaTokenizer CpmAntTokenizer CpmTokenizer CTRLTokenizer
DebertaTokenizer DebertaV2Tokenizer DiaTokenizer DistilBertTokenizer DPRContextEncoderTokenizer
DPRQuestionEncoderTokenizer DPRReaderTokenizer EsmTokenizer EsmcTokenizer FastSpeech2ConformerTokenizer
FlaubertTokenizer FSMTTokenizer FunnelTokenizer GPTNeoXJapaneseTokenizer GPTSw3Tokenizer HerbertTokenizer LasrTokenizer
LayoutLMv2Tokenizer LayoutLMv3Tokenizer LayoutXLMTokenizer LukeTokenizer M2M100Tokenizer MarianTokenizer
MarkupLMTokenizer MBart50Tokenizer MBartTokenizer MgpstrTokenizer MLukeTokenizer MPNetTokenizer MyT5Tokenizer
NllbTokenizer NougatTokenizer OpenAIGPTTokenizer PegasusTokenizer PerceiverTokenizer PhobertTokenizer PLBartTokenizer
Pop2PianoTokenizer ProphetNetTokenizer RagTokenizer ReformerTokenizer RemBertTokenizer RoCBertTokenizer RoFormerTokenizer
SeamlessM4TTokenizer Siglip2Tokenizer SiglipTokenizer Speech2TextTokenizer SpeechT5Tokenizer SplinterTokenizer
T5Tokenizer TapasTokenizer Tipsv2Tokenizer UdopTokenizer VideoPrismTokenizer VitsTokenizer
Wav2Vec2CTCTokenizer Wav2Vec2PhonemeCTCTokenizer WhisperTokenizer XGLMTokenizer XLMRobertaTokenizer XLMTokenizer
XLNetTokenizer`)

var (
	gpt2Roles    = map[string]string{RoleBOS: "<|endoftext|>", RoleEOS: "<|endoftext|>", RoleUnknown: "<|endoftext|>"}
	qwenRoles    = map[string]string{RoleUnknown: "<|endoftext|>", RoleEOS: "<|endoftext|>", RolePad: "<|endoftext|>"}
	neoxRoles    = map[string]string{RoleBOS: "<|endoftext|>", RoleEOS: "<|endoftext|>", RoleUnknown: "<|endoftext|>", RolePad: "<|padding|>"}
	robertaRoles = map[string]string{RoleBOS: "<s>", RoleEOS: "</s>", roleSEP: "</s>", roleCLS: "<s>", RoleUnknown: "<unk>",
		RolePad: "<pad>", roleMask: "<mask>"}
	bertRoles   = map[string]string{RoleUnknown: "[UNK]", roleSEP: "[SEP]", RolePad: "[PAD]", roleCLS: "[CLS]", roleMask: "[MASK]"}
	cohereRoles = map[string]string{RoleUnknown: "<UNK>", RoleBOS: "<BOS_TOKEN>", RoleEOS: "<|END_OF_TURN_TOKEN|>", RolePad: "<PAD>",
		roleCLS: "<CLS>", roleSEP: "<SEP>", roleMask: "<MASK_TOKEN>"}
)

// Parts of the classes: normalizer, pre_tokenizer, decoder, and what the model has besides vocabulary and merges.

func llamaParts(c classConfig) object {
	scheme, decoders := metaspaceScheme(c), modelDecoders()
	if scheme != "never" {
		decoders = append(decoders, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	return object{"decoder": sequenceOf("decoders", decoders), "model": object{"byte_fallback": true, "fuse_unk": true},
		"pre_tokenizer": object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false}}
}

// metaspaceScheme says where LlamaTokenizer puts a space.
func metaspaceScheme(c classConfig) string {
	switch {
	case !is(c.PrefixSpace, true):
		return "never"
	case c.Legacy:
		return "always"
	}
	return "first"
}

func gemmaParts(c classConfig) object {
	return object{"normalizer": spacesMarked(), "decoder": sequenceOf("decoders", modelDecoders()),
		"pre_tokenizer": object{"type": "Split", "pattern": object{"String": " "}, "behavior": "MergedWithPrevious", "invert": false},
		"model":         object{"byte_fallback": true, "fuse_unk": true, "unk_token": c.unknown}}
}

// byteLevel is a ByteLevel pre-tokenizer. split: it cuts text by GPT-2's pattern.
func (c classConfig) byteLevel(split bool) object {
	return object{"type": "ByteLevel", "add_prefix_space": is(c.PrefixSpace, false), "trim_offsets": true, "use_regex": split}
}

func bytesDecoder() object {
	return object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}
}

func gpt2Parts(c classConfig) object {
	return object{"pre_tokenizer": c.byteLevel(true), "decoder": bytesDecoder(), "model": object{}}
}

func neoxParts(c classConfig) object {
	parts := gpt2Parts(c)
	parts["normalizer"] = object{"type": "NFC"}
	return parts
}

func cohereParts(c classConfig) object {
	parts := neoxParts(c)
	parts["pre_tokenizer"] = sequenceOf("pretokenizers", []object{{"type": "Digits", "individual_digits": true}, c.byteLevel(true)})
	return parts
}

func splitParts(pattern string) func(classConfig) object {
	return func(c classConfig) object {
		parts := neoxParts(c)
		split := object{"type": "Split", "pattern": object{"Regex": pattern}, "behavior": "Isolated", "invert": false}
		parts["pre_tokenizer"] = sequenceOf("pretokenizers", []object{split, c.byteLevel(false)})
		return parts
	}
}

func bertParts(c classConfig) object {
	return object{"pre_tokenizer": object{"type": "BertPreTokenizer"}, "decoder": object{"type": "WordPiece", "prefix": "##",
		"cleanup": true},
		"model": object{"unk_token": c.unknown, "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
		"normalizer": object{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": is(c.Chinese, true),
			"strip_accents": c.StripMarks, "lowercase": is(c.LowerCase, true)}}
}

// fromJSONFolder returns a tokenizer.json with the parts of the class that AutoTokenizer takes for its folder. It
// completes d with what the class defines and with notes of what differs from the file.
func fromJSONFolder(folder string, data []byte, d *description) ([]byte, error) {
	path := filepath.Join(folder, ConfigFile)
	found, err := findClass(folder, isByteLevel(data))
	if err != nil {
		return nil, err
	}
	config, err := readClassConfig(path)
	if err != nil {
		return nil, err
	}
	class, known := jsonClasses[found.name]
	switch {
	case found.ownCode:
		d.note("%s: auto_map names code of its own, which gpupipe does not run: the rules are those of %s", path, File)
		return data, nil
	case !known && found.hasParts():
		d.note("%s: transformers reads a folder of %s with rules of its own, which gpupipe does not know: the rules are those of %s",
			path, cmp.Or(found.name, "a model of the type "+found.modelType), File)
		return data, nil
	case !known:
		return data, nil
	}
	d.setDefaults(path, class.roles)
	config.unknown = d.roles[RoleUnknown].Content
	d.around = class.around
	f, err := readParts(data)
	if err != nil {
		return nil, err
	}
	if f.kind != class.model {
		return nil, fmt.Errorf("%s: tokenizer_class is %s, whose model is a %s, and that of %s is a %s: expected a class for such a model",
			path, found.name, class.model, File, f.kind)
	}
	if found.name == llamaClass {
		if err := f.checkBytes(path); err != nil {
			return nil, err
		}
	}
	if err := f.checkFlags(d, found.name); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if differ := f.replace(class.parts(config)); len(differ) > 0 {
		d.note("%s: transformers reads a folder of %s with its own %s, and so does gpupipe; name %s for the rules of the file itself",
			path, found.name, strings.Join(differ, ", "), filepath.Join(folder, File))
	}
	f.dropAdded(d)
	if !f.changed {
		return data, nil
	}
	return f.json(), nil
}

// classedFile is a tokenizer.json whose parts are replaced.
type classedFile struct {
	fields, model map[string]json.RawMessage
	kind          string // the type of its model
	changed       bool
}

func readParts(data []byte) (f *classedFile, err error) {
	f = &classedFile{}
	if err = json.Unmarshal(data, &f.fields); err == nil {
		err = json.Unmarshal(f.fields["model"], &f.model)
	}
	if err != nil {
		return nil, fmt.Errorf("not a tokenizer.json: %w", jsonError(err))
	}
	if json.Unmarshal(f.model["type"], &f.kind) != nil && f.model["merges"] != nil {
		f.kind = "BPE"
	}
	return f, nil
}

// checkBytes refuses a vocabulary without a token for each byte, with which LlamaTokenizer loses characters.
func (f *classedFile) checkBytes(path string) error {
	var vocab map[string]json.RawMessage
	if err := json.Unmarshal(f.model["vocab"], &vocab); err != nil {
		return fmt.Errorf("model: vocab: %w", jsonError(err))
	}
	if err := wantBytes(vocab, File); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// wantBytes refuses the vocabulary of a file for LlamaTokenizer if it lacks the token of a byte.
func wantBytes[T any](vocab map[string]T, file string) error {
	for b := range 256 {
		if _, ok := vocab[byteToken(b)]; !ok {
			return fmt.Errorf("tokenizer_class is %s, which loses characters without a token, and %s has no token %s: expected one for each byte",
				llamaClass, file, byteToken(b))
		}
	}
	return nil
}

// checkFlags refuses special tokens whose flags the class drops. Qwen2Tokenizer drops the flags of every special token
// that a side file names, CohereTokenizer all but the flags of tokens with one of the library's roles.
func (f *classedFile) checkFlags(d *description, class string) error {
	dropped := slices.Clone(d.extra)
	names := d.texts
	switch class {
	case cohereClass:
	case qwen2Class:
		names = slices.Collect(maps.Keys(d.roles))
		for i, a := range dropped {
			dropped[i] = addedToken{Content: a.Content}
		}
	default:
		return nil
	}
	for _, name := range names {
		dropped = append(dropped, addedToken{Content: d.roles[name].Content})
	}
	list := slices.Clone(d.added)
	if !d.numbered {
		var own []addedToken
		if json.Unmarshal(f.fields["added_tokens"], &own) == nil {
			for _, a := range own {
				list = append(list, sideToken{addedToken: a})
			}
		}
	}
	for _, a := range dropped {
		for _, t := range list {
			if a.Content != "" && t.Content == a.Content && (t.LStrip != a.LStrip || t.RStrip != a.RStrip ||
				t.SingleWord != a.SingleWord || t.Normalized != a.Normalized) {
				return fmt.Errorf("%s drops lstrip, rstrip, single_word and normalized of the special token %q: expected a token without them", class, a.Content)
			}
		}
	}
	return nil
}

// replace gives the file the parts of a class, and lists those that differ.
func (f *classedFile) replace(parts object) (differ []string) {
	options := parts["model"].(object)
	for _, part := range []string{"normalizer", "pre_tokenizer", "decoder"} {
		if !sameJSON(f.fields[part], parts[part]) && !(part == "decoder" && isType(f.fields[part], "ByteLevel") &&
			isType(encoded(parts[part]), "ByteLevel")) {
			differ, f.fields[part] = append(differ, part), encoded(parts[part])
		}
	}
	for _, key := range []string{"unk_token", "continuing_subword_prefix", "end_of_word_suffix", "max_input_chars_per_word", "fuse_unk",
		"byte_fallback", "ignore_merges", "dropout"} {
		if f.mayDiffer(key, options) && !sameJSON(f.model[key], options[key]) {
			differ, f.model[key] = append(differ, "model."+key), encoded(options[key])
		}
	}
	f.changed = len(differ) > 0
	return differ
}

// mayDiffer reports whether an option of the model changes tokens. Where each byte has a token, nothing is unknown.
func (f *classedFile) mayDiffer(key string, options object) bool {
	if key != "unk_token" && key != "fuse_unk" {
		return true
	}
	_, set := options["unk_token"]
	return set || options["byte_fallback"] == nil && key == "unk_token"
}

// dropAdded drops the added tokens that tokenizer_config.json does not list, if it lists any: classes with parts of
// their own take none from the file then.
func (f *classedFile) dropAdded(d *description) {
	if !d.numbered {
		return
	}
	var list []addedToken
	if json.Unmarshal(f.fields["added_tokens"], &list) != nil {
		return // parse reports it
	}
	kept := slices.DeleteFunc(slices.Clone(list), func(a addedToken) bool {
		return !slices.ContainsFunc(d.added, func(side sideToken) bool { return side.ID >= 0 && side.Content == a.Content })
	})
	if len(kept) < len(list) {
		f.changed, f.fields["added_tokens"] = true, encoded(kept)
	}
}

func (f *classedFile) json() []byte {
	f.fields["model"] = encoded(f.model)
	return encoded(f.fields)
}

// isType reports whether a part is of a type.
func isType(raw json.RawMessage, name string) bool {
	p, err := readPart(raw, 0)
	return err == nil && p.Type == name
}

// encoded is a value as JSON; all values that are given to it can be written.
func encoded(v any) json.RawMessage {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// sameJSON reports whether a part of a file means the same as a part of a class.
func sameJSON(raw json.RawMessage, part any) bool {
	var a, b any
	if !isNull(raw) && json.Unmarshal(raw, &a) != nil || json.Unmarshal(encoded(part), &b) != nil {
		return false
	}
	return reflect.DeepEqual(canonical(a), canonical(b))
}

// canonical drops what does not change tokens or decoded texts.
func canonical(v any) any {
	switch v := v.(type) {
	case string:
		if v != "" {
			return v
		}
	case bool:
		if v {
			return v
		}
	case float64:
		if v != 0 {
			return v
		}
	case []any:
		var list []any
		for _, e := range v {
			list = append(list, canonical(e))
		}
		return list
	case map[string]any:
		return canonicalPart(v)
	}
	return nil
}

func canonicalPart(v map[string]any) any {
	for _, key := range []string{"normalizers", "pretokenizers", "decoders"} {
		if list, ok := v[key].([]any); ok && v["type"] == "Sequence" {
			switch len(list) {
			case 0:
				return nil
			case 1:
				return canonical(list[0])
			}
		}
	}
	out := map[string]any{}
	for key, e := range v {
		if no, ok := e.(bool); ok && !no && key == "strip_accents" { // null follows lowercase
			out[key] = no
		} else if e := canonical(e); e != nil && key != "trim_offsets" {
			out[key] = e
		}
	}
	return out
}
