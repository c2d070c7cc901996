package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/testing/hubserver"
	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// start serves a Hub, and sets a cache that is empty.
func start(t *testing.T, s *hubserver.Server) Options {
	t.Helper()
	require.NoError(t, s.Start())
	t.Cleanup(s.Close)
	for _, name := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH",
		"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_DISABLE_IMPLICIT_TOKEN"} {
		t.Setenv(name, "")
	}
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_ENDPOINT", s.URL())
	o, err := FromEnvironment(false)
	require.NoError(t, err)
	o.Wait = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return o
}

func fetch(t *testing.T, o Options, need hub.Need, names ...string) error {
	t.Helper()
	c, err := New(o)
	require.NoError(t, err)
	defer c.Close()
	var requests []Request
	for _, name := range names {
		n, ok, err := hub.Parse(name)
		require.NoError(t, err)
		require.True(t, ok)
		requests = append(requests, Request{n, need})
	}
	return c.Fetch(t.Context(), requests)
}

// random are bytes that differ from those of another seed.
func random(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func model(seed uint64) map[string][]byte {
	return map[string][]byte{
		"README.md": []byte("a model"), "config.json": []byte(`{"a": 1}`), "tokenizer.json": random(seed, 3000), "merges.txt": []byte("a b"),
		"model.safetensors.index.json": []byte(`{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}`),
		"model-1.safetensors":          random(seed+1, 100_000), "model-2.safetensors": random(seed+2, 70_000), "pytorch_model.bin": random(seed, 10),
		"other.safetensors": random(seed+3, 10), "sub/config.json": []byte("{}"), "sub/model.safetensors": random(seed+4, 1000),
		"é 1.safetensors": random(5, 9),
	}
}

// cached are the files of a snapshot, with their contents.
func cached(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files[filepath.ToSlash(rel)] = content
		return err
	}))
	return files
}

func TestFetchModel(t *testing.T) {
	s := &hubserver.Server{PageSize: 3}
	o := start(t, s)
	files := model(1)
	commit := s.Add("models/o/m", "main", files)
	require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m"))
	dir, err := hub.Locate("hf:o/m")
	require.NoError(t, err)
	assert.Equal(t, commit, filepath.Base(dir))
	got := cached(t, dir)
	for _, path := range []string{"config.json", "tokenizer.json", "model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors"} {
		assert.Equal(t, files[path], got[path], path)
	}
	assert.Len(t, got, 5)
	if runtime.GOOS != "windows" { // where most users may not make links: files are copies there
		to, err := os.Readlink(filepath.Join(dir, "model-1.safetensors"))
		require.NoError(t, err)
		sum := sha256.Sum256(files["model-1.safetensors"])
		assert.Equal(t, filepath.Join("..", "..", "blobs", hex.EncodeToString(sum[:])), to)
	}
	ref, err := os.ReadFile(filepath.Join(hub.Cache(), "models--o--m", "refs", "main"))
	require.NoError(t, err)
	assert.Equal(t, commit, string(ref))
	assert.FileExists(t, filepath.Join(hub.Cache(), "models--o--m", ".no_exist", commit, "added_tokens.json"))

	t.Run("what is there is not asked for again", func(t *testing.T) {
		before := len(s.Requests())
		require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m"))
		assert.Equal(t, []string{"GET " + strings.TrimPrefix(s.URL(), "http://") + "/api/models/o/m/revision/main"}, s.Requests()[before:])
		require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m@"+commit))
		assert.Len(t, s.Requests(), before+1)
	})
	t.Run("a damaged file is replaced", func(t *testing.T) {
		require.NoError(t, os.Truncate(filepath.Join(dir, "model-1.safetensors"), 100))
		require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m"))
		assert.Equal(t, files["model-1.safetensors"], cached(t, dir)["model-1.safetensors"])
	})
	t.Run("a folder of the repository", func(t *testing.T) {
		require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m/sub"))
		assert.Equal(t, files["sub/model.safetensors"], cached(t, dir)["sub/model.safetensors"])
	})
	t.Run("a new commit shares blobs", func(t *testing.T) {
		files["config.json"] = []byte(`{"a": 2}`)
		s.Add("models/o/m", "main", files)
		before := len(s.Requests())
		require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m"))
		assert.False(t, slices.ContainsFunc(s.Requests()[before:], func(r string) bool { return strings.Contains(r, "model-1") }))
		dir, err := hub.Locate("hf:o/m")
		require.NoError(t, err)
		assert.Equal(t, files["config.json"], cached(t, dir)["config.json"])
	})
	assert.Empty(t, s.Leaks())
}

func TestTokenGoesToTheHubAlone(t *testing.T) {
	s := &hubserver.Server{Token: "hf_secret", Access: true}
	o := start(t, s)
	s.Add("models/o/m", "main", model(1))
	s.Private("models/o/m")
	require.ErrorContains(t, fetch(t, o, hub.ForModel, "hf:o/m"), "has no model o/m, or it is private")
	o.Token, o.TokenFrom = "hf_secret", "HF_TOKEN"
	require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m"))
	assert.Empty(t, s.Leaks())
	assert.True(t, slices.ContainsFunc(s.Requests(), func(r string) bool { return strings.HasPrefix(r, "GET localhost:") }), "the storage was asked")
}

func TestErrorsSayWhatToDo(t *testing.T) {
	s := &hubserver.Server{Token: "hf_secret"}
	o := start(t, s)
	s.Add("models/o/m", "main", model(1))
	s.Add("models/o/gated", "main", model(1))
	s.Gated("models/o/gated")
	s.Add("models/o/pickle", "main", map[string][]byte{"config.json": nil, "pytorch_model.bin": random(1, 10)})
	s.Add("models/o/gguf", "main", map[string][]byte{"a-Q4.gguf": nil, "a-Q8.gguf": nil})
	s.Add("datasets/o/d", "main", map[string][]byte{"test.jsonl": []byte("{}"), "x/a.csv": nil})
	known := o
	known.Token, known.TokenFrom = "hf_secret", "HF_TOKEN"
	wrong := o
	wrong.Token, wrong.TokenFrom = "hf_wrong", "HF_TOKEN"
	for _, c := range []struct {
		o          Options
		name, want string
	}{
		{o, "hf:o/none", "has no model o/none, or it is private: check the name (a data set is hf:datasets/o/none); for a private one make a token at"},
		{known, "hf:o/none", "whether the account of the token from HF_TOKEN may read it"},
		{o, "hf:o/m@v9", "hf:o/m@v9: the model o/m has no revision v9"},
		{o, "hf:o/m/none.gguf", "hf:o/m/none.gguf: the model o/m has no file or folder none.gguf at main: it has README.md, config.json"},
		{o, "hf:o/m/other.safetensors", "found the file other.safetensors, expected a GGUF file, or the folder of a model"},
		{o, "hf:o/gated", "hf:o/gated: the model o/gated is gated: accept its conditions at " + s.URL() + "/o/gated, make a token at"},
		{known, "hf:o/gated", "the account of the token from HF_TOKEN has no access: accept its conditions"},
		{wrong, "hf:o/m", "hf:o/m: the Hub does not accept the token from HF_TOKEN: make a new one at"},
		{o, "hf:o/pickle", "o/pickle has its weights in pytorch_model.bin, a pickle of PyTorch"},
		{o, "hf:o/gguf", "o/gguf has 2 GGUF files, expected the name of one, such as hf:o/gguf/a-Q4.gguf"},
		{o, "hf:datasets/o/d:dev", "hf:datasets/o/d:dev: o/d has no split dev, expected one of test: hf:datasets/o/d:test, for example"},
		{o, "hf:datasets/o/d/x", "o/d has x/a.csv, expected .parquet"},
		{o, "hf:datasets/o/d/at@x", "/datasets/o/d/refs lists them; in the name of a file, ? stands for @"},
	} {
		need := hub.ForModel
		if strings.Contains(c.name, "datasets/") {
			need = hub.ForData
		}
		err := fetch(t, c.o, need, c.name)
		require.ErrorContains(t, err, c.want, c.name)
		assert.NotContains(t, err.Error(), "hf_")
	}
	o.Free = func(string) (int64, bool) { return 1000, true }
	require.ErrorContains(t, fetch(t, o, hub.ForModel, "hf:o/m"), "the download needs 16")
}

func TestCacheIsUsedWithoutTheHub(t *testing.T) {
	s := &hubserver.Server{}
	o := start(t, s)
	files := model(1)
	commit := s.Add("models/o/m", "main", files)
	s.Add("datasets/o/d", "main", map[string][]byte{"train-0.jsonl": []byte("{}"), "train-1.jsonl": []byte("{} ")})
	require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m"))
	require.NoError(t, fetch(t, o, hub.ForData, "hf:datasets/o/d/train-0.jsonl"))
	s.Close()
	var notes []string
	o.Note = func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m"))
	waits := 0
	once := o
	once.Wait = func(context.Context, time.Duration) error { waits++; return nil }
	require.NoError(t, fetch(t, once, hub.ForModel, "hf:o/m", "hf:o/m"))
	assert.Zero(t, waits, "one attempt if the cache has what is needed")
	require.Len(t, notes, 2, "one of each command, not of each name")
	assert.Contains(t, notes[0], "cannot be reached")
	assert.Contains(t, notes[0], "using what is in the cache of hf:o/m")
	require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m@"+commit), "a commit needs no Hub")
	require.ErrorContains(t, fetch(t, o, hub.ForData, "hf:datasets/o/d"), "cannot be reached", "one of two files is not there")
	_, err := hub.Files("hf:datasets/o/d")
	require.ErrorContains(t, err, `train-1.jsonl is not in the cache`)
	require.ErrorContains(t, err, `"gpupipe fetch hf:datasets/o/d" downloads what is missing`)
	got, err := hub.Files("hf:datasets/o/d/train-0.jsonl")
	require.NoError(t, err)
	assert.Len(t, got, 1)
}

func TestTokenOfTheEnvironment(t *testing.T) {
	start(t, &hubserver.Server{})
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("USERPROFILE", home)
	t.Setenv("HF_TOKEN_PATH", "~/token")
	o, err := FromEnvironment(false)
	require.NoError(t, err)
	assert.Empty(t, o.Token, "a file that is missing is no token")
	require.NoError(t, os.WriteFile(filepath.Join(home, "token"), []byte("hf_secret\n"), 0o666))
	o, err = FromEnvironment(false)
	require.NoError(t, err)
	assert.Equal(t, "hf_secret", o.Token)
	t.Setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "true")
	o, err = FromEnvironment(false)
	require.NoError(t, err)
	assert.Empty(t, o.Token)
	o, err = FromEnvironment(true)
	require.NoError(t, err)
	assert.Equal(t, "hf_secret", o.Token)
}

func TestResumes(t *testing.T) {
	s := &hubserver.Server{}
	o := start(t, s)
	files := model(1)
	s.Add("models/o/m", "main", files)
	var ranges []string
	broken := 3
	s.Fault = func(r *http.Request) (f hubserver.Fault) {
		if strings.HasPrefix(r.Host, "localhost") && len(r.URL.Path) == 65 {
			ranges = append(ranges, r.Header.Get("Range"))
			if broken > 0 {
				broken--
				f.Cut = 20_000
			}
		}
		return f
	}
	require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m"))
	dir, err := hub.Locate("hf:o/m")
	require.NoError(t, err)
	assert.Equal(t, files["model-1.safetensors"], cached(t, dir)["model-1.safetensors"])
	assert.Contains(t, ranges, "bytes=20000-")
}

func TestServerAsksToWait(t *testing.T) {
	s := &hubserver.Server{}
	o := start(t, s)
	s.Add("models/o/m", "main", model(1))
	var waits []time.Duration
	o.Wait = func(ctx context.Context, d time.Duration) error {
		waits = append(waits, d)
		return ctx.Err()
	}
	notes := 0
	o.Note = func(string, ...any) { notes++ }
	times := 2
	s.Fault = func(*http.Request) (f hubserver.Fault) {
		if times--; times >= 0 {
			f.Status, f.RetryAfter = http.StatusTooManyRequests, "7"
		}
		return f
	}
	require.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m"))
	assert.Equal(t, []time.Duration{7 * time.Second, 7 * time.Second}, waits)
	assert.Equal(t, 1, notes)
	times = 1000
	err := fetch(t, o, hub.ForModel, "hf:o/m@v1")
	require.ErrorContains(t, err, "too many requests (status 429), for the next 7s: wait, or set HF_TOKEN")
	times, waits = 1000, nil
	s.Fault = func(*http.Request) hubserver.Fault { return hubserver.Fault{Status: 429, RetryAfter: "3600"} }
	require.ErrorContains(t, fetch(t, o, hub.ForModel, "hf:o/m@v1"), "for the next 1h0m0s")
	assert.Empty(t, waits, "an hour is not waited for")
}

func TestSecondProcessWaits(t *testing.T) {
	s := &hubserver.Server{}
	o := start(t, s)
	s.Add("models/o/m", "main", model(1))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { assert.NoError(t, fetch(t, o, hub.ForModel, "hf:o/m")) })
	}
	wg.Wait()
	sum := sha256.Sum256(model(1)["model-1.safetensors"])
	loads := 0
	for _, r := range s.Requests() {
		if strings.HasSuffix(r, hex.EncodeToString(sum[:])) {
			loads++
		}
	}
	assert.Equal(t, 1, loads)
}

// withFaults has a server do wrong some times, and returns what it did.
func withFaults(s *hubserver.Server, r *rand.Rand) *[]hubserver.Fault {
	faults, seen := 1+r.IntN(12), new([]hubserver.Fault)
	var mu sync.Mutex
	s.Fault = func(*http.Request) (f hubserver.Fault) {
		mu.Lock()
		defer mu.Unlock()
		if faults == 0 || r.IntN(3) > 0 {
			return f
		}
		faults--
		switch r.IntN(9) {
		case 0:
			f.Status = []int{500, 502, 503, 504, 429, 403, 404, 401, 408, 416}[r.IntN(10)]
		case 1:
			f.Cut = 1 + r.Int64N(90_000)
		case 2:
			f.Cut, f.Stall = 1+r.Int64N(90_000), r.IntN(4) == 0
		case 3:
			f.Damage = true
		case 4:
			f.NoRange = true
		case 5:
			f.Extra = 1 + r.IntN(1000)
		case 6:
			f.Empty = true
		case 7:
			f.NoRange, f.Cut = true, 1+r.Int64N(90_000)
		case 8:
			f.Damage, f.Cut = true, 1+r.Int64N(90_000)
		}
		*seen = append(*seen, f)
		return f
	}
	return seen
}

// Whatever goes wrong with the server and its connections, there are the right bytes or a clear error, and the cache is
// never damaged: what another command finds there later is right.
func TestFaults(t *testing.T) {
	for seed := range uint64(tier.Times(t, 200, 10)) {
		r := rand.New(rand.NewPCG(seed, 7))
		s := &hubserver.Server{PageSize: 1 + r.IntN(5), Small: 1000}
		o := start(t, s)
		o.Idle = 20 * time.Millisecond
		files := model(seed)
		s.Add("models/o/m", "main", files)
		seen := withFaults(s, r)
		var failed error
		for range 30 { // as often as a patient user
			if failed = fetch(t, o, hub.ForModel, "hf:o/m"); failed == nil {
				break
			}
			assert.True(t, strings.HasPrefix(failed.Error(), "hf:o/m: "), "%d: %v", seed, failed)
			checkSnapshot(t, "models--o--m", seed, files)
		}
		require.NoError(t, failed, "%d: %+v", seed, *seen)
		checkSnapshot(t, "models--o--m", seed, files)
		dir, err := hub.Locate("hf:o/m")
		require.NoError(t, err)
		require.Equal(t, files["model-2.safetensors"], cached(t, dir)["model-2.safetensors"], seed)
		require.Empty(t, s.Leaks())
		s.Close()
	}
}

// checkSnapshot compares every file that the cache shows with the right one.
func checkSnapshot(t *testing.T, folder string, seed uint64, files map[string][]byte) {
	t.Helper()
	snapshots := filepath.Join(hub.Cache(), folder, "snapshots")
	if _, err := os.Stat(snapshots); err != nil {
		return
	}
	for path, content := range cached(t, snapshots) {
		_, path, _ = strings.Cut(path, "/")
		require.True(t, bytes.Equal(files[path], content), "%d: %s", seed, path)
	}
}
