package pretrained

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// write makes files with texts, and links where the text begins with "-> ".
func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		if len(text) > 3 && text[:3] == "-> " {
			require.NoError(t, os.Symlink(text[3:], path))
		} else {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		}
	}
}

func TestFind(t *testing.T) {
	for what, c := range map[string]struct {
		files map[string]string
		path  string
		want  string // the path found
	}{
		"a folder":                  {map[string]string{"m/config.json": "{}", "m/model.safetensors": ""}, "m", "m"},
		"a GGUF file":               {map[string]string{"m.gguf": "GGUF"}, "m.gguf", "m.gguf"},
		"a folder with a GGUF file": {map[string]string{"m/a.gguf": "GGUF", "m/README.md": ""}, "m", "m/a.gguf"},
		"a folder with a GGUF file in parts": {map[string]string{"m/a-00001-of-00002.gguf": "GGUF", "m/a-00002-of-00002.gguf": "GGUF"}, "m",
			"m/a-00001-of-00002.gguf"},
		"the snapshot of refs/main": {map[string]string{"models--o--m/refs/main": "b\n", "models--o--m/snapshots/a/config.json": "{}",
			"models--o--m/snapshots/b/config.json": "{}", "models--o--m/snapshots/b/model.safetensors": ""}, "models--o--m",
			"models--o--m/snapshots/b"},
		"the only snapshot": {map[string]string{"models--o--m/snapshots/a/config.json": "{}",
			"models--o--m/snapshots/a/model.safetensors": ""}, "models--o--m", "models--o--m/snapshots/a"},
		"a snapshot with a GGUF file": {map[string]string{"models--o--m/refs/main": "a", "models--o--m/snapshots/a/q.gguf": "GGUF"},
			"models--o--m", "models--o--m/snapshots/a/q.gguf"},
		"a name in the cache": {map[string]string{"hub/models--o--m/snapshots/a/config.json": "{}",
			"hub/models--o--m/snapshots/a/model.safetensors": ""}, "o/m", "hub/models--o--m/snapshots/a"},
	} {
		root := t.TempDir()
		t.Chdir(root)
		t.Setenv("HF_HUB_CACHE", "hub")
		write(t, root, c.files)
		got, err := Find(c.path, Expected)
		require.NoError(t, err, what)
		assert.Equal(t, filepath.FromSlash(c.want), got, what)
	}
}

func TestFindRefuses(t *testing.T) {
	for what, c := range map[string]struct {
		files map[string]string
		path  string
		want  string
	}{
		"nothing":      {nil, "none", "none: no such file or folder"},
		"a wrong path": {map[string]string{"runs/b/x": ""}, "runs/a", "runs/a: no such file or folder"},
		"a Hub name":   {nil, "org/tiny", `If it is a name on the Hugging Face Hub, write hf:org/tiny, which is downloaded`},
		"a dead link":  {map[string]string{"m": "-> gone"}, "m", "m: a symbolic link to gone, which is not there"},
		"dead blobs": {map[string]string{"m/config.json": "{}", "m/model.safetensors": "-> ../blobs/x"}, "m",
			"model.safetensors: a symbolic link to ../blobs/x, which is not there"},
		"an LFS pointer": {map[string]string{"m.gguf": "version https://git-lfs.github.com/spec/v1\n"}, "m.gguf", "a Git LFS pointer"},
		"tensors alone":  {map[string]string{"model.safetensors": "x"}, "model.safetensors", "name the folder"},
		"a pickle":       {map[string]string{"a.pth": "x"}, "a.pth", "a pickle of PyTorch"},
		"another file":   {map[string]string{"a.txt": "x"}, "a.txt", "not GGUF: no model here: expected a GGUF file, or a folder"},
		"an adapter":     {map[string]string{"m/adapter_config.json": "{}", "m/adapter_model.safetensors": ""}, "m", "merge_and_unload()"},
		"a missing shard": {map[string]string{"m/config.json": "{}", "m/a.safetensors": "",
			"m/model.safetensors.index.json": `{"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}}`}, "m",
			"m: 1 of the 2 shards of model.safetensors.index.json are missing, such as b.safetensors: the download did not finish"},
		"a tokenizer alone": {map[string]string{"m/tokenizer.json": "{}"}, "m", "m: found tokenizer.json: no model here"},
		"no snapshot":       {map[string]string{"models--o--m/refs/main": "abc"}, "models--o--m", `without a snapshot (refs/main names "abc")`},
		"many snapshots": {map[string]string{"h/snapshots/a/x": "", "h/snapshots/b/x": ""}, "h",
			"2 snapshots and none of refs/main: name one, such as"},
		"several models":   {map[string]string{"m/b/config.json": "", "m/a/config.json": ""}, "m", "name one, such as m/a, m/b"},
		"several GGUF":     {map[string]string{"m/b.gguf": "GGUF", "m/a.gguf": "GGUF"}, "m", "name one, such as m/a.gguf, m/b.gguf"},
		"no model":         {map[string]string{"m/x": ""}, "m", "no model here"},
		"no config":        {map[string]string{"m/model.safetensors": ""}, "m", "without config.json"},
		"a pickled folder": {map[string]string{"m/config.json": "{}", "m/pytorch_model.bin": ""}, "m", "pytorch_model.bin: found a pickle"},
		"shards without an index": {map[string]string{"m/config.json": "{}", "m/model-00001-of-00002.safetensors": "",
			"m/model-00002-of-00002.safetensors": ""}, "m", "without model.safetensors.index.json"},
		"another name": {map[string]string{"m/config.json": "{}", "m/x.safetensors": ""}, "m",
			"found x.safetensors, expected model.safetensors"},
	} {
		root := t.TempDir()
		t.Chdir(root)
		t.Setenv("HF_HUB_CACHE", "hub")
		write(t, root, c.files)
		_, err := Find(c.path, Expected)
		require.ErrorContains(t, err, filepath.FromSlash(c.want), what)
	}
}
