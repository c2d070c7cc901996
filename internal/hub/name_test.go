package hub

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	const refs = "refs/convert/parquet"
	for text, want := range map[string]Name{
		"hf:o/m":                       {ID: "o/m", Revision: "main"},
		"hf:gpt2":                      {ID: "gpt2", Revision: "main"},
		"hf:o/m@v1.0":                  {ID: "o/m", Revision: "v1.0"},
		"hf:o/m@v1/sub/x.gguf":         {ID: "o/m", Revision: "v1", Path: "sub/x.gguf"},
		"hf:o/m/sub/x.gguf@v1":         {ID: "o/m", Revision: "v1", Path: "sub/x.gguf"},
		"hf:o/m@feature%2Fa":           {ID: "o/m", Revision: "feature/a"},
		"hf:gpt2@v1/x.gguf":            {ID: "gpt2", Revision: "v1", Path: "x.gguf"},
		"hf:o/m@refs/pr/3":             {ID: "o/m", Revision: "refs/pr/3"},
		"hf://models/o/m":              {ID: "o/m", Revision: "main"},
		"hf:datasets/o/d":              {Kind: DataSets, ID: "o/d", Revision: "main"},
		"hf:datasets/o/d:train":        {Kind: DataSets, ID: "o/d", Revision: "main", Split: "train"},
		"hf:datasets/o/d@v1:a.b":       {Kind: DataSets, ID: "o/d", Revision: "v1", Split: "a.b"},
		"hf:datasets/o/d/a/*.p@v1:x":   {Kind: DataSets, ID: "o/d", Revision: "v1", Path: "a/*.p", Split: "x"},
		"hf:datasets/o/d/a@" + refs:    {Kind: DataSets, ID: "o/d", Revision: refs, Path: "a"},
		"hf:datasets/o/d@" + refs + "": {Kind: DataSets, ID: "o/d", Revision: refs},
		"hf://datasets/o/d@" + refs + "/default/train/*.parquet": {Kind: DataSets, ID: "o/d", Revision: refs, Path: "default/train/*.parquet"},
		"https://huggingface.co/datasets/o/d/tree/main/data":     {Kind: DataSets, ID: "o/d", Revision: "main", Path: "data"},
		"https://huggingface.co/datasets/o/d/tree/" + refs + "/a": {Kind: DataSets, ID: "o/d", Revision: refs,
			Path: "a"},
		"https://huggingface.co/o/m/blob/main/a%20b.gguf": {ID: "o/m", Revision: "main", Path: "a b.gguf"},
	} {
		got, ok, err := Parse(text)
		require.NoError(t, err, text)
		require.True(t, ok, text)
		want.explicit = true
		assert.Equal(t, want, got, text)
		again, _, err := Parse(got.Text())
		require.NoError(t, err, got.Text())
		assert.Equal(t, want, again, got.Text())
	}
	for _, text := range []string{"hf:", "hf:a/b:Q8_0", "hf:o/m@../x", "hf:o/m@a%00b", "hf:o/../x", "hf:o/m/../../x", "hf:../m", "hf:o/m@%2e%2e%2fx",
		"hf:a--b/c", "hf:datasets/o/d/../x", "hf:spaces/o/d"} {
		_, ok, err := Parse(text)
		assert.Error(t, err, text)
		assert.False(t, ok, text)
	}
}

func TestPinned(t *testing.T) {
	t.Chdir(t.TempDir())
	cache := filepath.Join(t.TempDir(), "hub")
	t.Setenv("HF_HUB_CACHE", cache)
	const commit = "0123456789012345678901234567890123456789"
	for path, text := range map[string]string{"models--o--m/refs/main": commit, "models--o--m/snapshots/" + commit + "/config.json": "",
		"datasets--o--d/refs/v1": commit, "datasets--o--d/snapshots/" + commit + "/a.jsonl": ""} {
		path = filepath.Join(cache, filepath.FromSlash(path))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	}
	for text, want := range map[string]string{"hf:o/m": "hf:o/m@" + commit, "hf:o/m/config.json": "hf:o/m@" + commit + "/config.json",
		"https://huggingface.co/o/m": "hf:o/m@" + commit, "hf:datasets/o/d/*.jsonl@v1:train": "hf:datasets/o/d/*.jsonl@" + commit + ":train",
		"hf:p/q": "hf:p/q", "o/m": "o/m", "hf:o/m@v2": "hf:o/m@v2"} {
		assert.Equal(t, want, Pinned(text), text)
		assert.Equal(t, want, Pinned(want), text)
	}
	dir, err := Locate("hf:o/m")
	require.NoError(t, err)
	assert.Equal(t, "hf:o/m@"+commit, PinnedPath(dir))
	assert.Equal(t, "hf:o/m@"+commit+"/config.json", PinnedPath(filepath.Join(dir, "config.json")))
	assert.Empty(t, PinnedPath("config.json"))
}

func TestSelectData(t *testing.T) {
	list := func(paths ...string) (files []File) {
		for _, p := range paths {
			files = append(files, File{Path: p})
		}
		sortFiles(files)
		return files
	}
	shards := list("README.md", ".gitattributes", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
		"data/dev-00000-of-00001.parquet", "data/notes.txt")
	words := list("train.jsonl", "train_2.jsonl", "test.jsonl", "strain.jsonl", "dataset_infos.json")
	folders := list("a/train/1.txt", "a/train/2.txt", "a/validation/3.txt", "a/.hidden/train/4.txt")
	plain := list("one.parquet", "two.parquet", "LICENSE.txt", "x/three.parquet")
	carded := list("README.md", "en/a.jsonl", "en/b.jsonl", "de/a.jsonl", "z.jsonl")
	const card = "---\nlicense: mit\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: [en/b.jsonl, en/a*]\n" +
		"  - {split: test, path: z.jsonl}\n- config_name: de\n  data_files: de/*.jsonl\n---\nA data set.\n"
	const named = "---\nconfigs:\n- config_name: default\n  data_files: en/*\n- config_name: de\n  data_dir: de\n---\n"
	configs := func(list string) string { return "---\nconfigs: [" + list + "]\n---\n" }
	for _, c := range []struct {
		files      []File
		card, name string
		want       []string
		err        string
	}{
		{shards, "", "hf:datasets/o/d", []string{"data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"}, ""},
		{shards, "", "hf:datasets/o/d:dev", []string{"data/dev-00000-of-00001.parquet"}, ""},
		{shards, "", "hf:datasets/o/d:validation", nil, "o/d has no split validation, expected one of dev, train: hf:datasets/o/d:dev, for example"},
		{shards, "", "hf:datasets/o/d/data/*.parquet", []string{"data/dev-00000-of-00001.parquet", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"}, ""},
		{shards, "", "hf:datasets/o/d/data/*:train", []string{"data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"}, ""},
		{shards, "", "hf:datasets/o/d/data/notes.txt", []string{"data/notes.txt"}, ""},
		{shards, "", "hf:datasets/o/d/none", nil, "has no file or folder none"},
		{shards, "", "hf:datasets/o/d/*.csv", nil, "no file that matches *.csv at main: it has .gitattributes, README.md, data/dev"},
		{shards, "", "hf:datasets/o/d/data/*.csv", nil, "no file that matches data/*.csv at main: it has data/dev-00000-of-00001.parquet, data/n"},
		{shards, "", "hf:datasets/o/d/none/*.csv", nil, "no file that matches none/*.csv at main: it has .gitattributes, README.md, data/dev"},
		{shards, "", "hf:datasets/o/d/dat*", nil, "the glob dat* matches no file, but folders of the data set o/d at main: dat*/** matches"},
		{list("at@x", "a:b.jsonl"), "", "hf:datasets/o/d/a:b.jsonl", nil, "is written with ?: hf:datasets/o/d/a?b.jsonl"},
		{list("at@x", "a:b.jsonl"), "", "hf:datasets/o/d/a?b.jsonl", []string{"a:b.jsonl"}, ""},
		{words, "", "hf:datasets/o/d", []string{"train.jsonl", "train_2.jsonl"}, ""},
		{words, "", "hf:datasets/o/d:test", []string{"test.jsonl"}, ""},
		{folders, "", "hf:datasets/o/d", []string{"a/train/1.txt", "a/train/2.txt"}, ""},
		{folders, "", "hf:datasets/o/d/a:validation", []string{"a/validation/3.txt"}, ""},
		{plain, "", "hf:datasets/o/d", []string{"one.parquet", "two.parquet", "x/three.parquet"}, ""},
		{plain, "", "hf:datasets/o/d/**/t*", []string{"two.parquet", "x/three.parquet"}, ""},
		{carded, card, "hf:datasets/o/d", nil, "o/d has the configurations en, de: expected one, such as hf:datasets/o/d/en"},
		{carded, card, "hf:datasets/o/d/fr:train", nil, "o/d has no configuration, file or folder fr at main, and has the configurations en, de: " +
			"expected one, such as hf:datasets/o/d/en:train"},
		{carded, card, "hf:datasets/o/d/y.jsonl", nil, "the data set o/d has no file or folder y.jsonl at main: it has README.md, de/a.jsonl"},
		{carded, card, "hf:datasets/o/d/dee@v1:test", nil, "the configurations en, de: expected one, such as hf:datasets/o/d/de@v1:test"},
		{carded, card, "hf:datasets/o/d/en", []string{"en/b.jsonl", "en/a.jsonl"}, ""},
		{carded, card, "hf:datasets/o/d/en:test", []string{"z.jsonl"}, ""},
		{carded, card, "hf:datasets/o/d/de", []string{"de/a.jsonl"}, ""},
		{carded, named, "hf:datasets/o/d", []string{"en/a.jsonl", "en/b.jsonl"}, ""},
		{carded, named, "hf:datasets/o/d/de", []string{"de/a.jsonl"}, ""},
		{list("LICENSE.txt", "corpus.jsonl"), "", "hf:datasets/o/d", []string{"corpus.jsonl"}, ""},
		{list("a.txt", "b.json", "b.jsonl"), "", "hf:datasets/o/d", []string{"b.json", "b.jsonl"}, ""},
		{list("a.txt", "b.txt", "b.parquet"), "", "hf:datasets/o/d", []string{"a.txt", "b.txt"}, ""},
		{list("a.bin", "b.bin", "b.jsonl.gz"), "", "hf:datasets/o/d", []string{"b.jsonl.gz"}, ""},
		{list("metadata.csv", "metadata.jsonl", "b.txt"), "", "hf:datasets/o/d", []string{"b.txt"}, ""},
		{list("1.png", "2.png", "b.txt"), "", "hf:datasets/o/d", nil, "o/d has 1.png, 2.png, b.txt, expected .parquet"},
		{list("train/README.md", "test/dataset_infos.json", "a.txt"), "", "hf:datasets/o/d", []string{"a.txt"}, ""},
		{list("train.jsonl", "a:b.jsonl", "/c.jsonl"), "", "hf:datasets/o/d:train", []string{"train.jsonl"}, ""},
		{list("train.jsonl", "../b"), "", "hf:datasets/o/d/train.jsonl", []string{"train.jsonl"}, ""},
		{list("a.jsonl", "/c.jsonl"), "", "hf:datasets/o/d", nil, `o/d has the file "/c.jsonl", expected a path that this machine can have`},
		{carded, "\n \n---\nconfigs: [{config_name: x, data_dir: ./en/, data_files: '[!a].jsonl'}]\n---", "hf:datasets/o/d/x", []string{"en/b.jsonl"}, ""},
		{carded, "---\nconfigs: [{config_name: x, data_dir: en/}]\n---", "hf:datasets/o/d", []string{"en/a.jsonl", "en/b.jsonl"}, ""},
		{carded, "---\nconfigs: [{config_name: x, data_dir: fr}]\n---", "hf:datasets/o/d", nil, "README.md of o/d names fr, which it does not have at main"},
		{carded, "---\nconfigs: [{config_name: x, data_files: [z.jsonl, none.jsonl]}]\n---", "hf:datasets/o/d", nil,
			"README.md of o/d names none.jsonl, which it does not have at main"},
		{carded, "---\nconfigs: [{config_name: x, data_files: 'none*'}]\n---", "hf:datasets/o/d", nil,
			"o/d has no file of the split train at main: none matches none*"},
		{list("a.csv"), "", "hf:datasets/o/d", nil, "hf:datasets/o/d@refs/convert/parquet"},
		{list("d.py", "data/train.jsonl"), "", "hf:datasets/o/d", nil, "o/d is made by the script d.py, which load_dataset no longer runs"},
		{list("d.py", "data/train.jsonl"), "", "hf:datasets/o/d/data/*.jsonl", []string{"data/train.jsonl"}, ""},
		{list("data/обучение-00000-of-00001.parquet", "data/x-00000-of-00001.parquet"), "", "hf:datasets/o/d:обучение",
			[]string{"data/обучение-00000-of-00001.parquet"}, ""},
		{list("data/train-en-00000-of-00001.parquet"), "", "hf:datasets/o/d", nil, `has the split "train-en", expected letters`},
		{list("data/a\nb-00000-of-00001.parquet"), "", "hf:datasets/o/d", nil, `has the split "a\nb", expected letters`},
		{list("x/1.eval", "train.jsonl"), "", "hf:datasets/o/d", nil, "o/d has no split train, expected one of logs"},
		{list("x/task.toml", "train.jsonl"), "", "hf:datasets/o/d", nil, "o/d has no split train, expected one of test"},
		{plain, "", "hf:datasets/o/d/**.parquet", nil, "found the glob **.parquet, expected ** between slashes: **/*.parquet"},
		{plain, "", "hf:datasets/o/d/x/**.parquet", nil, "found the glob x/**.parquet, expected ** between slashes: x/**/*.parquet"},
		{plain, "", "hf:datasets/o/d/x**/***", nil, "expected ** between slashes: **/x*/**/*"},
		{carded, configs("{config_name: x, data_files: '**.jsonl'}"), "hf:datasets/o/d", nil, "expected ** between slashes"},
		{carded, configs("{config_name: x, data_files: [en/a.jsonl, en/*]}"), "hf:datasets/o/d", nil,
			"README.md of o/d has two globs of the split train that match en/a.jsonl, which load_dataset then reads twice"},
		{carded, configs("{config_name: a, data_files: z.jsonl, default: true}, {config_name: default, data_files: de/*}"), "hf:datasets/o/d", nil,
			"o/d has the default configurations a, default: expected one, such as hf:datasets/o/d/a"},
		{carded, configs("{config_name: a, data_files: z.jsonl}, {config_name: b, data_files: z.jsonl}, {config_name: a, data_files: de/*}"),
			"hf:datasets/o/d/a", []string{"de/a.jsonl"}, ""},
		{carded, configs("{config_name: &g z.jsonl, data_files: *g}"), "hf:datasets/o/d", []string{"z.jsonl"}, ""},
		{carded, configs("{config_name: a, field: &g null, data_files: *g}"), "hf:datasets/o/d", Paths(carded[1:]), ""},
		{carded, configs("{config_name: &t test, data_files: [{split: *t, path: &g [de/*]}]}, {config_name: b, data_files: *g}"),
			"hf:datasets/o/d/test:test", []string{"de/a.jsonl"}, ""},
		{carded, configs("{config_name: &t test, data_files: [{split: *t, path: &g [de/*]}]}, {config_name: b, data_files: *g}"),
			"hf:datasets/o/d/b", []string{"de/a.jsonl"}, ""},
		{carded, configs("{config_name: &g z.jsonl, data_files: [{split: train, path: *g}]}"), "hf:datasets/o/d", []string{"z.jsonl"}, ""},
		{carded, configs("{data_files: z.jsonl}"), "hf:datasets/o/d", nil, "expected config_name"},
		{carded, configs("{config_name: a, data_files: [{path: z.jsonl}]}"), "hf:datasets/o/d", nil, "expected globs, or a list of different splits"},
		{carded, configs("{config_name: a, data_files: [{split: va l, path: z.jsonl}]}"), "hf:datasets/o/d", nil,
			`README.md: configs: a: data_files: found the split "va l", expected letters, digits, _ and dots`},
		{carded, configs("{config_name: a, data_files: [{split: train, path: }]}"), "hf:datasets/o/d", nil, "data_files: train has no path"},
		{carded, configs("{config_name: a, data_files: [{split: train}]}"), "hf:datasets/o/d", nil, "data_files: train has no path"},
		{carded, configs("{config_name: a, data_dir: en, data_files: 'https://example.com/x.jsonl'}"), "hf:datasets/o/d", nil,
			"README.md of o/d names https://example.com/x.jsonl, which it does not have at main"},
		{carded, "---\nconfigs: hello\n---\n", "hf:datasets/o/d", nil, "README.md: configs: line 2: found the text `hello`, expected a list"},
		{carded, "---\nconfigs: 5\n---\n", "hf:datasets/o/d", nil, "README.md: configs: line 2: found the number `5`, expected a list"},
		{carded, "---\nconfigs: {a: b}\n---\n", "hf:datasets/o/d", nil, "README.md: configs: line 2: found a mapping, expected a list"},
		{carded, "---\nconfigs: \n---\n", "hf:datasets/o/d/z.jsonl", []string{"z.jsonl"}, ""},
		{carded, configs("hello"), "hf:datasets/o/d", nil, "README.md: configs: line 2: found the text `hello`, expected a mapping"},
		{carded, configs("{config_name: [x]}"), "hf:datasets/o/d", nil, "README.md: configs: line 2: found a list, expected a text"},
		{carded, configs("{config_name: [x], default: [y]}, `"), "hf:datasets/o/d", nil, "README.md: the description of the data set: yaml: line 2: found character"},
		{carded, configs("{config_name: [x], default: a ` b}"), "hf:datasets/o/d", nil,
			"README.md: configs: line 2: found a list, expected a text; line 2: found the text `a ` b`, expected true or false"},
		{carded, "---\nlicense: mit\na: 'b\n---\n", "hf:datasets/o/d", nil, "README.md: the description of the data set: yaml: line 3: found"},
		{carded, "---\nhello\n---\n", "hf:datasets/o/d", nil, "README.md: the description of the data set: line 2: found the text `hello`, expected a mapping"},
		{carded, "---\nconfigs: hello\n---\n", "hf:datasets/o/d/de/*.jsonl", []string{"de/a.jsonl"}, ""},
		{list("README.md", ".gitattributes"), "# None", "hf:datasets/o/d:validation", nil,
			"o/d has no files of text at main: it has .gitattributes, README.md"},
		{list("README.md", ".gitattributes"), "# None", "hf:datasets/o/d", nil, "o/d has no files of text at main"},
		{carded, configs("{config_name: a, data_files: [z.jsonl, {split: test, path: de/*}]}"), "hf:datasets/o/d", nil, "a list of different splits"},
		{carded, configs("{config_name: a, data_files: [{split: x, path: z.jsonl}, {split: x, path: de/*}]}"), "hf:datasets/o/d:x", nil,
			"a list of different splits"},
		{carded, configs("{config_name: a, data_files: z.jsonl, field: data}"), "hf:datasets/o/d", nil,
			"README.md of o/d: the configuration a has the key field, which gpupipe does not follow"},
		{carded, configs("{config_name: a, data_files: z.jsonl, filters: [[id, '==', 1]]}"), "hf:datasets/o/d", nil, "the key filters"},
		{carded, configs("{config_name: a, data_files: z.jsonl, encoding: latin-1}"), "hf:datasets/o/d", nil, "the key encoding"},
		{carded, configs("{config_name: a, data_files: z.jsonl, encoding: UTF-8}"), "hf:datasets/o/d", []string{"z.jsonl"}, ""},
		{carded, "\uFEFF" + configs("{config_name: a, data_files: z.jsonl}"), "hf:datasets/o/d", []string{"z.jsonl"}, ""},
		{list("README.md", `a\b.jsonl`, "a*.jsonl"), configs(`{config_name: a, data_files: 'a\*.jsonl'}`), "hf:datasets/o/d", []string{`a\b.jsonl`}, ""},
	} {
		n, _, err := Parse(c.name)
		require.NoError(t, err)
		got, err := n.Select(ForData, c.files, func(File) ([]byte, error) { return []byte(c.card), nil })
		if c.err != "" {
			require.ErrorContains(t, err, c.err, c.name)
			assert.NotContains(t, err.Error(), "\n", c.name)
			continue
		}
		require.NoError(t, err, c.name)
		assert.Equal(t, c.want, Paths(got), c.name)
	}
}

// The error of a name says which of its parts is wrong.
func TestNamesThatAreWrong(t *testing.T) {
	const nothing = "expected the name of a model on the Hugging Face Hub"
	for text, want := range map[string]string{
		"hf:": nothing, "hf:a/": nothing, "hf:o r/m": `found " " in the name "o r/m", expected letters from a to z, digits, -, _ and dots`,
		"hf:o/mü": `found "ü" in the name "o/mü"`, "hf:datasets/o/-d": `found "/-" in the name "o/-d"`, "hf:o/a..b": `found ".." in the name`,
		"hf:a--b/c": `found "--" in the name "a--b/c"`, "hf:o/m@v 1": `found the revision "v 1", expected a branch, a tag or a commit: letters`,
		"hf:datasets/o/d:train[:10%]":           `found the split "train[:10%]", expected letters, digits, _ and dots`,
		"https://huggingface.co/datasets/o/d e": `found " " in the name "o/d e"`,
	} {
		_, _, err := Parse(text)
		assert.ErrorContains(t, err, want, text)
	}
}

// The configurations of .huggingface.yaml replace those of the card.
func TestConfigsOfTheStandaloneFile(t *testing.T) {
	n, _, err := Parse("hf:datasets/o/d")
	require.NoError(t, err)
	files := []File{{Path: ".huggingface.yaml"}, {Path: "README.md"}, {Path: "a.jsonl"}, {Path: "b.jsonl"}}
	for standalone, want := range map[string]string{"license: mit": "a.jsonl", "configs: [{config_name: x, data_files: b.jsonl}]": "b.jsonl"} {
		texts := map[string]string{".huggingface.yaml": standalone, "README.md": "---\nconfigs: [{config_name: y, data_files: a.jsonl}]\n---\n"}
		got, err := n.Select(ForData, files, func(f File) ([]byte, error) { return []byte(texts[f.Path]), nil })
		require.NoError(t, err)
		assert.Equal(t, []string{want}, Paths(got), standalone)
	}
}
