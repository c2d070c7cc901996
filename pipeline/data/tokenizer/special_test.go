package tokenizer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// folder makes a folder of files.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return dir
}

func smollm2(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("testdata/smollm2-style.json")
	require.NoError(t, err)
	return string(text)
}

// What belongs to a tokenizer is read from the files of its folder, and written so that it is read again.
func TestSpecialOfFolder(t *testing.T) {
	named := `[{"name":"default","template":"{{ bos_token }}"},{"name":"tool_use","template":"tools"}]`
	end, im := Token{0, "<|endoftext|>"}, Token{2, "<|im_end|>"}
	for name, c := range map[string]struct {
		files map[string]string
		want  Special
	}{
		"nothing": {nil, Special{Roles: map[string]Token{RoleEOS: end}, Ends: []uint32{0}}},
		"roles":   {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>","pad_token":{"content":"<|endoftext|>"},"bos_token":null,"add_bos_token":true}`}, Special{Roles: map[string]Token{RoleEOS: im, RolePad: end}, Ends: []uint32{2}}},
		"no end":  {map[string]string{ConfigFile: `{"eos_token":null}`}, Special{Roles: map[string]Token{}}},
		"list of ends": {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>"}`, GenerationFile: `{"eos_token_id":[0,2]}`},
			Special{Roles: map[string]Token{RoleEOS: im}, Ends: []uint32{0, 2}}},
		"another end": {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>"}`, GenerationFile: `{"eos_token_id":0}`},
			Special{Roles: map[string]Token{RoleEOS: im}, Ends: []uint32{2, 0}}},
		"the model's": {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>"}`,
			"config.json": `{"model_type":"llama","eos_token_id":[2,0]}`}, Special{Roles: map[string]Token{RoleEOS: im},
			Ends: []uint32{2, 0}}},
		"template": {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>","chat_template":"old"}`, TemplateFile: "new"},
			Special{Roles: map[string]Token{RoleEOS: im}, Ends: []uint32{2}, Templates: []Template{{"default", "new"}}}},
		"more templates": {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>","chat_template":` + named + `}`},
			Special{Roles: map[string]Token{RoleEOS: im}, Ends: []uint32{2}, Templates: []Template{{"default", "{{ bos_token }}"},
				{"tool_use", "tools"}}}},
	} {
		dir := folder(t, map[string]string{File: smollm2(t)})
		for file, text := range c.files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
		}
		tok := open(t, dir)
		assert.Equal(t, &c.want, tok.Special(), name)
		again := map[string]string{}
		for file, text := range Files(tok, 0) {
			again[file] = string(text)
		}
		assert.Equal(t, &c.want, open(t, folder(t, again)).Special(), name)
	}
}

func TestSpecialMistakes(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"generation_config.json: eos_token_id is \"x\": expected the number":                                                   {GenerationFile: `{"eos_token_id":"x"}`},
		"generation_config.json: eos_token_id: found the token 600, expected one of the tokenizer's 600 tokens, from 0 to 599": {GenerationFile: `{"eos_token_id":[2,600]}`},
		"config.json: eos_token_id: found the token 4000":                                                                      {"config.json": `{"model_type":"llama","eos_token_id":4000}`},
		"chat_template: expected a string, or a list":                                                                          {ConfigFile: `{"chat_template":3}`},
		"add_bos_token is 3: expected true or false":                                                                           {ConfigFile: `{"add_bos_token":3}`},
		"pad_token is 3: expected a string or an object":                                                                       {ConfigFile: `{"pad_token":3}`},
	} {
		files[File] = smollm2(t)
		_, err := Open(folder(t, files))
		assert.ErrorContains(t, err, want)
	}
}

// No text becomes a byte or the unknown token.
func TestSentencePieceReserves(t *testing.T) {
	p := func(text string, kind uint64) piece { return piece{text: text, kind: kind} }
	m := sentencePiece{algorithm: 1, pieces: []piece{p("<unk>", unknownPiece), p("<s>", controlPiece), p("<0x0A>", bytePiece), p("<", 1),
		p("a", 1)}}
	split := m.reservedSplit().(object)
	require.Equal(t, object{"Regex": `<(?=unk>)|<(?=0x0A>)`}, split["pattern"])
	m.pieces = append(m.pieces, p("<0", 1))
	require.Nil(t, m.reservedSplit())
}

// Tokens of the files beside a tokenizer have the ids that transformers gives them, or are refused. The ids are those
// of transformers 5.23.
func TestTokensOfSideFiles(t *testing.T) {
	const text = "hi <|im_start|>user a<extra>b"
	llama2, err := os.ReadFile("testdata/llama2-style.json")
	require.NoError(t, err)
	const decoder = `{"800":{"content":"<|im_start|>","special":true}}`
	for name, c := range map[string]struct {
		files map[string]string
		start uint32
		err   string
	}{
		"added_tokens.json": {map[string]string{addedTokensFile: `{"<|im_start|>":800,"<extra>":801}`,
			ConfigFile: `{"additional_special_tokens":["<|im_start|>"]}`}, 800, ""},
		"added_tokens_decoder": {map[string]string{ConfigFile: `{"added_tokens_decoder":` + decoder + `}`,
			addedTokensFile: `{"<extra>":5}`}, 800, ""},
		"additional": {map[string]string{ConfigFile: `{"additional_special_tokens":["<extra>","<|im_start|>"]}`}, 801, ""},
		"extra":      {map[string]string{ConfigFile: `{"extra_special_tokens":["<|im_start|>"]}`}, 800, ""},
		"named":      {map[string]string{ConfigFile: `{"extra_special_tokens":{"image_token":"<|im_start|>"}}`}, 800, ""},
		"role":       {map[string]string{ConfigFile: `{"eos_token":"<extra>","pad_token":"<|im_start|>"}`}, 801, ""},
		"special_tokens_map": {map[string]string{ConfigFile: `{"eos_token":"<extra>"}`, specialMapFile: `{"eos_token":"<|im_start|>"}`},
			800, ""},
		"a gap": {map[string]string{addedTokensFile: `{"<|im_start|>":807}`}, 0,
			"transformers numbers tokens without gaps, and gives it 800"},
		"an id": {map[string]string{ConfigFile: `{"added_tokens_decoder":{"x":{"content":"a"}}}`}, 0, `found the id "x"`},
	} {
		c.files[File] = string(llama2)
		dir := folder(t, c.files)
		if c.err != "" {
			_, err := Open(dir)
			assert.ErrorContains(t, err, c.err, name)
			continue
		}
		tok := open(t, dir)
		ids, err := tok.Encode([]byte(text))
		require.NoError(t, err)
		assert.Contains(t, ids, c.start, name)
		again := map[string]string{}
		for file, text := range Files(tok, 0) {
			again[file] = string(text)
		}
		kept := open(t, folder(t, again))
		same, err := kept.Encode([]byte(text))
		require.NoError(t, err)
		assert.Equal(t, ids, same, name)
		assert.Equal(t, tok.Hash(), kept.Hash(), name)
		assert.Equal(t, tok.Special().Extra, kept.Special().Extra, name)
	}
	bare := open(t, folder(t, map[string]string{File: string(llama2), ConfigFile: `{"eos_token":"</s>","bos_token":"<s>"}`}))
	assert.Equal(t, hashOf(llama2), bare.Hash(), "files that add nothing leave the identity of a tokenizer as it is")
}

// A folder of named templates is read; its files go before those of tokenizer_config.json.
func TestTemplateFiles(t *testing.T) {
	dir := folder(t, map[string]string{File: smollm2(t), ConfigFile: `{"chat_template":[{"name":"old","template":"x"}]}`,
		TemplateFile: "chat"})
	require.NoError(t, os.Mkdir(filepath.Join(dir, templateFolder), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, templateFolder, "tool_use.jinja"), []byte("tools"), 0o644))
	s := open(t, dir).Special()
	assert.Equal(t, []Template{{DefaultTemplate, "chat"}, {"tool_use", "tools"}}, s.Templates)
	assert.Equal(t, []string{"chat", "tools", ""}, []string{s.Template(""), s.Template("tool_use"), s.Template("old")})
}

// A tokenizer is found in the Hub's cache, and an error says what is there.
func TestTokenizerOfTheHub(t *testing.T) {
	text := smollm2(t)
	t.Chdir(t.TempDir())
	t.Setenv("HF_HUB_CACHE", "hub")
	snapshot := filepath.Join("hub", "models--o--m", "snapshots", "a")
	require.NoError(t, os.MkdirAll(snapshot, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(snapshot, File), []byte(text), 0o644))
	for _, spec := range []string{filepath.Join("hub", "models--o--m"), "o/m", "hf:o/m", "https://huggingface.co/o/m",
		"https://huggingface.co/o/m/blob/main/tokenizer.json"} {
		assert.Equal(t, filepath.Join(snapshot, File), open(t, spec).Name(), spec)
	}
	require.NoError(t, os.Rename(filepath.Join(snapshot, File), filepath.Join(snapshot, "README.md")))
	for spec, want := range map[string]string{
		"o/m":    "found README.md in the folder, expected tokenizer.json, tekken.json",
		"hf:p/q": `the model p/q is not in the cache hub: "gpupipe fetch hf:p/q" downloads what is missing`,
		"p/q":    `If it is a name on the Hugging Face Hub, write hf:p/q, which is downloaded`, "none": `tokenizer "none": no such file or folder, and not "bytes" or "gpt2"`,
	} {
		_, err := Open(spec)
		assert.ErrorContains(t, err, want)
	}
}
