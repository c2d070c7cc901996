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
		"nothing":        {nil, Special{Roles: map[string]Token{RoleEOS: end}, Ends: []uint32{0}, Assumed: true}},
		"roles":          {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>","pad_token":{"content":"<|endoftext|>"},"bos_token":null,"add_bos_token":true}`}, Special{Roles: map[string]Token{RoleEOS: im, RolePad: end}, Ends: []uint32{2}, AddBOS: true}},
		"list of ends":   {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>"}`, GenerationFile: `{"eos_token_id":[0,2]}`}, Special{Roles: map[string]Token{RoleEOS: im}, Ends: []uint32{0, 2}}},
		"another end":    {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>"}`, GenerationFile: `{"eos_token_id":0}`}, Special{Roles: map[string]Token{RoleEOS: im}, Ends: []uint32{2, 0}}},
		"the model's":    {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>"}`, "config.json": `{"model_type":"llama","eos_token_id":[2,0]}`}, Special{Roles: map[string]Token{RoleEOS: im}, Ends: []uint32{2, 0}}},
		"template":       {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>","chat_template":"old"}`, TemplateFile: "new"}, Special{Roles: map[string]Token{RoleEOS: im}, Ends: []uint32{2}, Templates: []Template{{"default", "new"}}}},
		"more templates": {map[string]string{ConfigFile: `{"eos_token":"<|im_end|>","chat_template":` + named + `}`}, Special{Roles: map[string]Token{RoleEOS: im}, Ends: []uint32{2}, Templates: []Template{{"default", "{{ bos_token }}"}, {"tool_use", "tools"}}}},
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
		c.want.Assumed = false
		assert.Equal(t, &c.want, open(t, folder(t, again)).Special(), name)
	}
}

func TestSpecialMistakes(t *testing.T) {
	for want, files := range map[string]map[string]string{
		"generation_config.json: eos_token_id is \"x\": expected the number": {GenerationFile: `{"eos_token_id":"x"}`},
		"chat_template: expected a string, or a list":                        {ConfigFile: `{"chat_template":3}`},
		"add_bos_token is 3: expected true or false":                         {ConfigFile: `{"add_bos_token":3}`},
		"pad_token is 3: expected a string or an object":                     {ConfigFile: `{"pad_token":3}`},
	} {
		files[File] = smollm2(t)
		_, err := Open(folder(t, files))
		assert.ErrorContains(t, err, want)
	}
}

// No text becomes a byte or the unknown token.
func TestSentencePieceReserves(t *testing.T) {
	p := func(text string, kind uint64) piece { return piece{text: text, kind: kind} }
	m := sentencePiece{algorithm: 1, pieces: []piece{p("<unk>", unknownPiece), p("<s>", controlPiece), p("<0x0A>", bytePiece), p("<", 1), p("a", 1)}}
	split := m.reservedSplit().(object)
	require.Equal(t, object{"Regex": `<(?=unk>)|<(?=0x0A>)`}, split["pattern"])
	m.pieces = append(m.pieces, p("<0", 1))
	require.Nil(t, m.reservedSplit())
}
