package hub

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// makeCache makes a cache in the working directory: o/m with two snapshots, g with one.
func makeCache(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("HF_HUB_CACHE", "hub")
	for path, text := range map[string]string{
		"hub/models--o--m/refs/main": "b\n", "hub/models--o--m/refs/v1": "a", "hub/models--o--m/snapshots/a/x.json": "",
		"hub/models--o--m/snapshots/b/x.json": "",
		"hub/models--g/snapshots/c/x.json":    "", "hub/models--o--two/snapshots/a/x": "", "hub/models--o--two/snapshots/b/x": "",
		"hub/models--o--none/refs/main":    "abc",
		"hub/datasets--o--d/snapshots/a/x": "", "here/x.json": "", "elsewhere/snapshots/a/x.json": "", "runs/a/x": "",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	}
}

func TestLocate(t *testing.T) {
	makeCache(t)
	const main = "hub/models--o--m/snapshots/b"
	for path, want := range map[string]string{
		"here": "here", "here/x.json": "here/x.json", "hub/models--o--m": main, "hub/models--o--m/": main,
		"hub/models--o--m/snapshots":   main,
		"hub/models--o--m/snapshots/a": "hub/models--o--m/snapshots/a", "elsewhere": "elsewhere/snapshots/a", "o/m": main,
		"o/m@v1": "hub/models--o--m/snapshots/a",
		"o/m@a":  "hub/models--o--m/snapshots/a", "models--o--m": main, "g": "hub/models--g/snapshots/c", "hf:o/m": main, "hf://o/m": main,
		"hf://o/m/x.json": main + "/x.json", "hf://o/m@v1/x.json": "hub/models--o--m/snapshots/a/x.json",
		"https://huggingface.co/o/m":  main,
		"https://huggingface.co/o/m/": main, "http://hf.co/o/m?library=x": main, "huggingface.co/o/m": main,
		"https://huggingface.co/g":             "hub/models--g/snapshots/c",
		"https://huggingface.co/o/m/tree/main": main, "https://huggingface.co/o/m/blob/v1/x.json": "hub/models--o--m/snapshots/a/x.json",
		"https://huggingface.co/o/m/resolve/main/x.json?download=true": main + "/x.json",
	} {
		got, err := Locate(path)
		require.NoError(t, err, path)
		assert.Equal(t, filepath.FromSlash(want), filepath.Clean(got), path)
	}
	for path, want := range map[string]bool{"o/m": true, "g": true, "models--o--m": true, "hf:p/q": true,
		"https://huggingface.co/p/q": true, "p/q": false, "nothing": false, "runs/b": false} {
		assert.Equal(t, want, IsName(path), path)
	}
	assert.Equal(t, "o/m", NameOf(main))
	assert.Equal(t, "g", NameOf("hub/models--g/snapshots/c/x.json"))
	assert.Empty(t, NameOf("here"))
}

func TestLocateRefuses(t *testing.T) {
	makeCache(t)
	cases := map[string]string{
		"nothing": "nothing: no such file or folder", "runs/b": "runs/b: no such file or folder", "a/b/c": "a/b/c: no such file or folder",
		"p/q":                        `p/q: no such file or folder. If it is a name on the Hugging Face Hub, write hf:p/q, which is downloaded`,
		"p/q.gguf":                   "p/q.gguf: no such file or folder",
		"hf:p/q":                     `hf:p/q: the model p/q is not in the cache hub: "gpupipe fetch hf:p/q" downloads what is missing`,
		"https://huggingface.co/p/q": "the model p/q is not in the cache hub",
		"models--p--q":               "the model p/q is not in the cache hub",
		"https://example.org/m.gguf": "gpupipe downloads from the Hugging Face Hub alone: download the file, and name it",
		"hf://datasets/o/d":          "found a data set of the Hub, expected a model",
		"https://hf.co/spaces/o/d":   "found a space of the Hub, expected a model or a data set",
		"hf:a/b:Q8_0":                `found "Q8_0" behind a colon, expected the name of a file: hf:a/b/NAME.gguf`,
		"hub":                        "hub: found the Hub's cache, expected a model: name one, such as hub/models--g, hub/models--o--m",
		"hub/datasets--o--d":         "found a dataset in the Hub's cache",
		"hub/models--o--none":        `without a snapshot (refs/main names "abc"): the download did not finish: "gpupipe fetch hf:o/none" downloads what is missing`,
		"o/two":                      "2 snapshots and none of refs/main: name one, such as hub/models--o--two/snapshots/a",
		"o/m@v2":                     "without the revision v2: found the snapshots a, b",
		"hf://o/m/y.json":            `hub/models--o--m/snapshots/b/y.json: not in the Hub's cache, which has x.json of this model: "gpupipe fetch hf:o/m" downloads`,
		"https://huggingface.co/o/m/blob/main/w.safetensors": "w.safetensors: not in the Hub's cache",
	}
	if err := os.Symlink("gone", "dead"); err == nil || runtime.GOOS != "windows" { // where most users may not make links
		require.NoError(t, err)
		cases["dead"] = "dead: a symbolic link to gone, which is not there"
	}
	for path, want := range cases {
		_, err := Locate(path)
		require.Error(t, err, path)
		require.Contains(t, filepath.ToSlash(err.Error()), want, path)
		assert.Equal(t, path == "nothing" || path == "runs/b" || path == "a/b/c" || path == "p/q.gguf", errors.Is(err, fs.ErrNotExist), path)
	}
}

func TestContents(t *testing.T) {
	makeCache(t)
	assert.Equal(t, "datasets--o--d, models--g, models--o--m, models--o--none, models--o--two", Contents("hub"))
	for _, name := range []string{"1", "2", "3", "4", "5", "6", "7"} {
		require.NoError(t, os.WriteFile(filepath.Join("runs", "a", name), nil, 0o666))
	}
	assert.Equal(t, "1, 2, 3, 4, 5, 6 and 2 more", Contents("runs/a"))
	assert.Equal(t, "nothing", Contents("none"))
}
