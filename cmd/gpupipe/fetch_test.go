package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/gpupipe/gpupipe/internal/testing/hubserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onHub serves a small model under a name, and texts as a data set, for commands with an empty cache.
func onHub(t *testing.T, model, dataset string) *hubserver.Server {
	t.Helper()
	dir := t.TempDir()
	exported := filepath.Join(dir, "exported")
	code, _, errs := command("train", small(t, dir), "--device", "null", "--set", "train.steps=2")
	require.Equal(t, exitOK, code, errs)
	code, _, errs = command("export", filepath.Join(dir, "run"), "--out", exported)
	require.Equal(t, exitOK, code, errs)
	s := &hubserver.Server{Small: 100}
	require.NoError(t, s.Start())
	t.Cleanup(s.Close)
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_ENDPOINT", s.URL())
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"} {
		t.Setenv(name, "")
	}
	files := map[string][]byte{"README.md": []byte("---\nlicense: mit\n---\n")}
	entries, err := os.ReadDir(exported)
	require.NoError(t, err)
	for _, e := range entries {
		files[e.Name()], err = os.ReadFile(filepath.Join(exported, e.Name()))
		require.NoError(t, err)
	}
	s.Add("models/"+model, "main", files)
	line := []byte(`{"text": "` + strings.Repeat("In the beginning. ", 200) + `"}` + "\n")
	s.Add("datasets/"+dataset, "main", map[string][]byte{"train-0.jsonl": line, "train-1.jsonl": line, "validation.jsonl": line,
		"questions.jsonl": []byte(`{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}` + "\n")})
	return s
}

func TestNamesOfTheHub(t *testing.T) {
	dir := t.TempDir()
	s := onHub(t, "o/m", "o/d")
	tuned := filepath.Join(dir, "tuned")
	file := filepath.Join(dir, "run.yaml")
	require.NoError(t, os.WriteFile(file, []byte("init: {from: hf:o/m}\ndata: {train: ['hf:datasets/o/d']}\nrun: {dir: "+tuned+"}\n"), 0o666))
	code, _, errs := command("train", file, "--device", "null", "--set", "data.val=[hf:datasets/o/d:validation]", "--set", "train.steps=2")
	require.Equal(t, exitOK, code, errs)
	text, err := os.ReadFile(filepath.Join(tuned, "config.yaml"))
	require.NoError(t, err)
	for _, want := range []string{"from: hf:o/m@", "tokenizer: hf:o/m@", "train: ['hf:datasets/o/d@", ":train", ":validation']"} {
		assert.Contains(t, strings.ReplaceAll(string(text), `"`, "'"), strings.TrimPrefix(want, ":train"))
	}
	assert.NotContains(t, string(text), "snapshots", "what is kept names commits, not this machine's folders")

	s.Add("models/o/m", "main", map[string][]byte{"config.json": []byte("{}")}) // the run keeps its commits
	s.Add("datasets/o/d", "main", map[string][]byte{"train.jsonl": []byte("{}")})
	before := len(s.Requests())
	branch := []string{"--from", "step-2", "--set", "run.dir=" + filepath.Join(dir, "branch")}
	for i, args := range [][]string{{tuned, "--resume"}, {file, "--resume"}, {"--config", file, "--resume"}, append([]string{file}, branch...),
		{"--config", tuned, "--resume"}, {"--config", tuned, "--from", "step-2"}} {
		args = append(append([]string{"train"}, args...), "--device", "null", "--set", "data.val=[hf:datasets/o/d:validation]",
			"--set", fmt.Sprint("train.steps=", 3+i))
		code, _, errs = command(args...)
		require.Equal(t, exitOK, code, "%v: %s", args, errs)
	}
	assert.Len(t, s.Requests(), before, "what is in the cache under its commit is not asked for")
	assert.Empty(t, s.Leaks())
	v2 := s.Add("datasets/o/d", "v2", map[string][]byte{"validation.jsonl": []byte(`{"text": "` + strings.Repeat("In the end. ", 200) + `"}`)})
	code, _, errs = command("train", file, "--resume", "--device", "null", "--set", "data.val=[hf:datasets/o/d@v2:validation]", "--set", "train.steps=9")
	require.Equal(t, exitOK, code, errs)
	text, err = os.ReadFile(filepath.Join(tuned, "config.yaml"))
	require.NoError(t, err)
	assert.Contains(t, string(text), "hf:datasets/o/d@"+v2+":validation", "a revision on the command line is meant")
	code, _, errs = command("train", file, "--device", "null", "--set", "run.dir="+filepath.Join(dir, "new"))
	require.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "has no weights", "a new run asks for the newest commit")
}

// The runs of a sweep that goes on have the commits that it began with, each revision its own.
func TestSweepKeepsCommits(t *testing.T) {
	dir := t.TempDir()
	config := small(t, dir)
	s := onHub(t, "o/m", "o/d")
	line := []byte(`{"text": "` + strings.Repeat("In the end. ", 200) + `"}` + "\n")
	s.Add("datasets/o/d", "v1", map[string][]byte{"train.jsonl": line, "validation.jsonl": line})
	file := filepath.Join(dir, "sweep.yaml")
	require.NoError(t, os.WriteFile(file, []byte("base: "+config+"\nset: {data.val: ['hf:datasets/o/d:validation']}\n"+
		"keys: {data.train: ['hf:datasets/o/d', 'hf:datasets/o/d@v1']}\ndir: "+filepath.Join(dir, "sweep")+"\n"), 0o666))
	code, _, errs := command("sweep", file, "--device", "null")
	require.Equal(t, exitOK, code, errs)
	configs := func() (texts []string) {
		paths, err := filepath.Glob(filepath.Join(dir, "sweep", "runs", "*", "config.yaml"))
		require.NoError(t, err)
		require.Len(t, paths, 2)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			texts = append(texts, string(text))
		}
		return texts
	}
	kept := configs()
	before := len(s.Requests())
	for _, revision := range []string{"main", "v1"} {
		s.Add("datasets/o/d", revision, map[string][]byte{"train.jsonl": []byte("{}")})
	}
	runs, err := filepath.Glob(filepath.Join(dir, "sweep", "runs", "*"))
	require.NoError(t, err)
	for i, path := range []string{file, filepath.Join(dir, "sweep")} {
		require.NoError(t, os.RemoveAll(runs[i]))
		code, _, errs = command("sweep", path, "--device", "null")
		require.Equal(t, exitOK, code, errs)
		assert.Equal(t, kept, configs())
	}
	assert.Len(t, s.Requests(), before)
}

// While a run's line is shown, notes of downloads wait for the run's next output, and are there at its end whatever it
// is.
func TestNotesOfDownloadsInARun(t *testing.T) {
	var out, errs strings.Builder
	a := &app{ctx: t.Context(), stdout: &out, stderr: &errs}
	r := newProgress(a, false)
	require.NoError(t, a.whileShown(r, func() error { return nil }), "nothing was downloaded")
	a.downloads = &status{app: a}
	failed := errors.New("failed")
	assert.Equal(t, failed, a.whileShown(r, func() error {
		a.downloads.note("while %d", 1)
		assert.Empty(t, out.String()+errs.String())
		return failed
	}))
	a.downloads.note("between")
	assert.Equal(t, "while 1\n", out.String())
	assert.Equal(t, "between\n", errs.String(), "where members are awaited, nothing shows notes but their own lines")
}

// A run on a data set of several Parquet files trains when it has the first one. What arrives later is the same text,
// also for a run that ended because it did not arrive, and is resumed.
func TestTextArrivesWhileTheRunTrains(t *testing.T) {
	dir := t.TempDir()
	config := small(t, dir)
	s := onHub(t, "o/m", "o/d")
	shards := map[string][]byte{}
	for i, name := range []string{"plain", "snappy", "zstd"} {
		content, err := os.ReadFile("../../pipeline/data/parquet/testdata/" + name + ".parquet")
		require.NoError(t, err)
		shards[fmt.Sprintf("data/train-%05d-of-00003.parquet", i)] = content
	}
	commit := s.Add("datasets/o/p", "main", shards)
	last := sha256.Sum256(shards["data/train-00002-of-00003.parquet"])
	begun := filepath.Join(dir, "run", "metrics.jsonl")
	status := func() int { // of the last file: not before the run has trained on nearly all of the first two
		if text, err := os.ReadFile(begun); err != nil || bytes.Count(text, []byte("\n")) < 150 {
			return http.StatusServiceUnavailable
		}
		return 0
	}
	s.Fault = func(r *http.Request) (f hubserver.Fault) {
		if strings.HasSuffix(r.URL.Path, hex.EncodeToString(last[:])) {
			f.Status = status()
		}
		return f
	}
	train := []string{"train", config, "--device", "null", "--set", "data={train: [hf:datasets/o/p], val_fraction: 0.1, shuffle: true, tokenizer: bytes}", "--set", "train.steps=400", "--set", "train.save_every=100",
		"--set", "train.eval_every=0"}
	code, out, errs := command(train...)
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "data.stream: training begins with 1 of the 3 files")
	assert.Contains(t, out, " training tokens in the first of 3 files, ")
	assert.Contains(t, out, "training text: all 3 files are read: ")
	text, err := os.ReadFile(filepath.Join(dir, "run", "config.yaml"))
	require.NoError(t, err)
	assert.Contains(t, string(text), "hf:datasets/o/p@"+commit)
	assert.Contains(t, out, "waiting for the training text: train-00002-of-00003.parquet, file 3 of 3")
	position := dataOf(t, filepath.Join(dir, "run"), 400)

	t.Run("a new commit", func(t *testing.T) {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "run")))
		shards["README.md"] = []byte("new")
		commit := s.Add("datasets/o/p", "main", shards)
		code, _, errs := command(train...)
		require.Equal(t, exitOK, code, errs)
		text, err := os.ReadFile(filepath.Join(dir, "run", "config.yaml"))
		require.NoError(t, err)
		assert.Contains(t, string(text), "hf:datasets/o/p@"+commit, "not the one that the cache had")
	})
	t.Run("on several computers", func(t *testing.T) {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "run")))
		shards["README.md"] = []byte("newer")
		commit := s.Add("datasets/o/p", "main", shards)
		host := append([]string{"host", config, "--members", "0", "--listen", "127.0.0.1:0", "--address", "127.0.0.1"}, train[2:]...)
		code, _, errs := command(host...)
		require.Equal(t, exitOK, code, errs)
		text, err := os.ReadFile(filepath.Join(dir, "run", "config.yaml"))
		require.NoError(t, err)
		assert.Contains(t, string(text), "hf:datasets/o/p@"+commit, "not the one that the cache had")
		assert.Equal(t, position, dataOf(t, filepath.Join(dir, "run"), 400))
	})
	t.Run("a file that does not come", func(t *testing.T) {
		t.Setenv("HF_HOME", t.TempDir())
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "run")))
		status = func() int { return http.StatusForbidden }
		code, _, errs := command(train...)
		require.Equal(t, exitMistake, code)
		assert.Contains(t, errs, "hf:datasets/o/p: ")
		assert.Contains(t, errs, "the checkpoint of step ")
		status = func() int { return 0 }
		code, _, errs = command("train", filepath.Join(dir, "run"), "--resume")
		require.Equal(t, exitOK, code, errs)
		assert.Equal(t, position, dataOf(t, filepath.Join(dir, "run"), 400))
	})
	t.Run("all is in the cache", func(t *testing.T) {
		t.Setenv("HF_HUB_OFFLINE", "1")
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "run")))
		code, out, errs := command(train...)
		require.Equal(t, exitOK, code, errs)
		assert.NotContains(t, out, "waiting for the training text: train-00000")
		assert.Equal(t, position, dataOf(t, filepath.Join(dir, "run"), 400))
		code, _, errs = command("eval", filepath.Join(dir, "run"), "--device", "null")
		require.Equal(t, exitOK, code, errs)
	})
}

// dataOf is where a checkpoint is in its data.
func dataOf(t *testing.T, run string, step int) any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(run, "checkpoints", fmt.Sprint("step-", step), "state.json"))
	require.NoError(t, err)
	var s map[string]any
	require.NoError(t, json.Unmarshal(text, &s))
	return s["data"]
}

func TestNamesInFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	for path, text := range map[string]string{
		"base.yaml":       "base: base.yaml\ninit: {from: hf:o/m}\ndata: {train: ['hf:datasets/o/d'], tokenizer: hf:o/t}\n",
		"run/config.yaml": "init: {from: hf:o/run}\n",
		"sweep.yaml":      "base: $HERE/base.yaml\nset: {data.aligned: 'hf:datasets/o/aligned'}\nkeys: {init.from: [hf:o/a, hf:o/b]}\n",
		"inline.yaml":     "base: {data: {aligned: 'hf:datasets/o/aligned'}, init: {from: hf:o/m}}\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	}
	t.Setenv("HERE", ".")
	const base = "init.from hf:o/m 0, data.train hf:datasets/o/d 2, data.tokenizer hf:o/t 1"
	for path, want := range map[string]string{
		"base.yaml":   base + ", " + base,
		"run":         "init.from hf:o/run 0",
		"sweep.yaml":  "data.aligned hf:datasets/o/aligned 3, init.from hf:o/a 0, init.from hf:o/b 0, " + base,
		"inline.yaml": "data.aligned hf:datasets/o/aligned 3, init.from hf:o/m 0",
		"none.yaml":   "",
	} {
		var got []string
		for _, k := range inFile(path, "config") {
			got = append(got, fmt.Sprintf("%s %s %d", k.key, k.Name.Text(), k.Need))
		}
		assert.Equal(t, want, strings.Join(got, ", "), path)
	}
}

// What flags override is not downloaded, and the training text is left to the command, however it is written.
func TestOverriddenNamesAreNotFetched(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("run.yaml", []byte("init: {from: hf:o/m}\ndata: {train: hf:datasets/o/d, tokenizer: hf:o/t}\n"), 0o666))
	for _, c := range []struct {
		want string
		set  []string
	}{
		{"hf:o/m hf:o/t", nil},
		{"hf:o/m hf:o/t", []string{"data.train=hf:datasets/o/e"}},
		{"hf:o/m hf:o/t", []string{"data.train[0]=hf:datasets/o/e"}},
		{"hf:o/m hf:o/u", []string{"data={train: [hf:datasets/o/e], tokenizer: hf:o/u}"}},
		{"hf:o/m hf:datasets/o/v", []string{"data={train: [hf:datasets/o/e], tokenizer: hf:o/u}", "data={val: [hf:datasets/o/v]}"}},
		{"hf:o/t hf:o/b", []string{"init.from=hf:o/a", "init={from: hf:o/b}"}},
		{"hf:o/m hf:o/t hf:datasets/o/v", []string{"data.val[0]=hf:datasets/o/v"}},
	} {
		args := []string{"train", "run.yaml"}
		for _, s := range c.set {
			args = append(args, "--set", s)
		}
		parser, err := kong.New(&commands{}, kong.Vars(targetVars()), kong.Vars{"version": ""})
		require.NoError(t, err)
		parsed, err := parser.Parse(args)
		require.NoError(t, err)
		var got []string
		for _, r := range requestsOf(parsed.Selected()) {
			got = append(got, r.Name.Text())
		}
		assert.Equal(t, c.want, strings.Join(got, " "), c.set)
	}
}

func TestCommandsTakeNamesOfTheHub(t *testing.T) {
	dir := t.TempDir()
	s := onHub(t, "o/m", "o/d")
	for _, args := range [][]string{
		{"tokenizer", "check", "hf:o/m", "--text", "hf:datasets/o/d:validation"},
		{"plan", "--set", "init.from=hf:o/m", "--set", "pipeline.devices=[null:0]"},
	} {
		code, _, errs := command(args...)
		assert.Equal(t, exitOK, code, "%v: %s", args, errs)
	}
	for _, r := range s.Requests() {
		assert.NotContains(t, r, "model.safetensors", "tokenizers and plans need no weights")
	}
	for _, args := range [][]string{
		{"generate", "hf:o/m", "-n", "2", "--device", "null"},
		{"eval", "hf:o/m", "--data", "hf:datasets/o/d/train-*.jsonl", "--device", "null"},
		{"eval", "hf:o/m", "--task", "hf:datasets/o/d/questions.jsonl", "--device", "null"},
		{"export", "hf:o/m", "--out", filepath.Join(dir, "copy")},
		{"topk", "hf:o/m", "--data", "hf:datasets/o/d", "--device", "null", "--out", filepath.Join(dir, "k.safetensors")},
		{"data", "hf:datasets/o/d", "--tokenizer", "hf:o/m", "--out", filepath.Join(dir, "shards")},
		{"tokenizer", "train", "hf:datasets/o/d", "--vocab-size", "300", "--out", filepath.Join(dir, "tok")},
	} {
		code, _, errs := command(args...)
		assert.Equal(t, exitOK, code, "%v: %s", args, errs)
	}
	code, out, errs := command("fetch", "hf:o/m", "hf:datasets/o/d:validation")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, filepath.Join("models--o--m", "snapshots"))
	assert.Contains(t, out, "validation.jsonl")
	for want, args := range map[string][]string{
		"hf:o/none: " + s.URL() + " has no model o/none": {"generate", "hf:o/none"},
		"o/d has no split dev":                           {"tokenizer", "check", "bytes", "--text", "hf:datasets/o/d:dev"},
		"expected hf:org/name or hf:datasets/org/name":   {"fetch", "o/m"},
		`found "Q4" behind a colon, expected`:            {"train", "--set", "data.train=[x]", "--set", "init.from=hf:o/m:Q4"},
	} {
		code, _, errs := command(args...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want)
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	before := len(s.Requests())
	code, _, errs = command("generate", "hf:o/m", "-n", "2", "--device", "null")
	assert.Equal(t, exitOK, code, errs)
	code, _, errs = command("generate", "hf:o/none", "-n", "2", "--device", "null")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, `"gpupipe fetch hf:o/none" downloads what is missing, without HF_HUB_OFFLINE, which forbids it now`)
	assert.Len(t, s.Requests(), before)
}

func TestPush(t *testing.T) {
	dir := t.TempDir()
	s := onHub(t, "o/m", "o/d")
	s.Token = "hf_write"
	run := filepath.Join(dir, "run")
	code, _, errs := command("train", small(t, dir), "--device", "null", "--set", "data.train=[hf:datasets/o/d]")
	require.Equal(t, exitOK, code, errs)
	code, _, errs = command("push", run, "me/m")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, "an upload needs a token with the right to write")
	t.Setenv("HF_TOKEN", "hf_write")
	code, out, errs := command("push", run, "me/m", "--license", "mit", "--step", "8")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "README.md")
	files := s.Files("models/me/m", "main")
	for _, name := range []string{"README.md", "config.json", "model.safetensors", "tokenizer.json", "loss.png"} {
		assert.NotEmpty(t, files[name], name)
	}
	card := string(files["README.md"])
	for _, want := range []string{"---\nlibrary_name: transformers\n", "license: mit\n", "datasets:\n    - o/d\n", "| step | 8 |", "validation loss",
		"![losses by step](loss.png)", "model.d_model: 16", "lr.warmup: 2", "data.train: ['hf:datasets/o/d@", "data.val_fraction: 0.1"} {
		assert.Contains(t, strings.ReplaceAll(card, `"`, "'"), want)
	}
	assert.NotContains(t, card, dir, "a card does not name this machine's folders")
	code, _, errs = command("generate", "hf:me/m", "-n", "2", "--device", "null")
	assert.Equal(t, exitOK, code, errs)
	for want, args := range map[string][]string{
		"m: expected org/name":                                              {"push", run, "m"},
		"the model me/m has no revision v1":                                 {"push", run, "me/m@v1"},
		"datasets/o/d: expected org/name":                                   {"push", run, "datasets/o/d"},
		"has no checkpoint of step 3, expected one of":                      {"push", run, "me/m", "--step", "3"},
		"HF_ENDPOINT: found \"nowhere\", expected an address such as https": {"fetch", "hf:me/m"},
	} {
		if strings.HasPrefix(want, "HF_ENDPOINT") {
			t.Setenv("HF_ENDPOINT", "nowhere")
		}
		code, _, errs := command(args...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want)
		t.Setenv("HF_ENDPOINT", s.URL())
	}
	assert.Empty(t, s.Leaks())
}
