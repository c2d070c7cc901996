package client

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupipe/gpupipe/internal/hub"
	"github.com/gpupipe/gpupipe/internal/testing/hubserver"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func push(t *testing.T, o Options, name string, files map[string][]byte) (string, error) {
	return pushed(t, o, name, files, PushOptions{Message: "A model"})
}

func pushed(t *testing.T, o Options, name string, files map[string][]byte, p PushOptions) (string, error) {
	t.Helper()
	c, err := New(o)
	require.NoError(t, err)
	defer c.Close()
	n, _, err := hub.Parse(name)
	require.NoError(t, err)
	dir := t.TempDir()
	var uploads []Upload
	for path, content := range files {
		file := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		require.NoError(t, os.WriteFile(file, content, 0o666))
		uploads = append(uploads, Upload{path, file})
	}
	return c.Push(t.Context(), n, uploads, p)
}

func TestPush(t *testing.T) {
	for _, part := range []int{0, 30_000} {
		s := &hubserver.Server{Token: "hf_secret", Part: part}
		o := start(t, s)
		files := map[string][]byte{"README.md": []byte("# A\n"), "config.json": []byte("{}"), "model.safetensors": random(1, 100_001),
			"sub/empty.safetensors": nil}
		_, err := push(t, o, "hf:o/new", files)
		require.ErrorContains(t, err, "hf:o/new: an upload needs a token with the right to write: make one at")
		o.Token, o.TokenFrom = "hf_wrong", "HF_TOKEN"
		_, err = push(t, o, "hf:o/new", files)
		require.ErrorContains(t, err, "the Hub does not accept the token from HF_TOKEN")
		o.Token = "hf_secret"
		broken := 2
		s.Fault = func(r *http.Request) (f hubserver.Fault) {
			if r.Method == http.MethodPut && broken > 0 {
				broken--
				f.Status = http.StatusServiceUnavailable
			}
			return f
		}
		var done, total int64
		o.Progress = func(d, of int64) { done, total = d, of }
		address, err := push(t, o, "hf:o/new", files)
		require.NoError(t, err)
		assert.Contains(t, address, s.URL()+"/o/new/commit/")
		assert.Equal(t, int64(100_001), total)
		assert.Equal(t, total, done)
		got := s.Files("models/o/new", "main")
		for p, content := range files {
			assert.Equal(t, len(content), len(got[p]), p)
			assert.Equal(t, string(content), string(got[p]), p)
		}
		assert.Contains(t, got, ".gitattributes", "what is there stays")

		before := len(s.Requests())
		files["config.json"] = []byte(`{"a": 1}`)
		_, err = push(t, o, "hf:o/new", files)
		require.NoError(t, err)
		for _, r := range s.Requests()[before:] {
			assert.False(t, strings.HasPrefix(r, "PUT"), "what the storage has is not sent again")
		}
		assert.Equal(t, `{"a": 1}`, string(s.Files("models/o/new", "main")["config.json"]))
		require.NoError(t, fetch(t, o, hub.ForTokenizer, "hf:o/new"))
		assert.Empty(t, s.Leaks())
		_, err = push(t, o, "hf:o/new@branch", files)
		require.ErrorContains(t, err, "has no revision branch")
		_, err = push(t, o, "hf:new", files)
		require.ErrorContains(t, err, "expected org/name")
		s.Close()
	}
}

func TestSecondPushReplacesWeights(t *testing.T) {
	s := &hubserver.Server{Token: "hf_secret"}
	o := start(t, s)
	o.Token = "hf_secret"
	s.Add("models/o/m", "main", map[string][]byte{"README.md": []byte("# Written by hand\n"), "model.safetensors": random(1, 100),
		"old.safetensors": random(2, 100), "notes.txt": nil})
	s.Fault = func(r *http.Request) (f hubserver.Fault) {
		if strings.HasSuffix(r.URL.Path, "/repos/create") { // as for a token of this repository alone
			f.Status = http.StatusForbidden
		}
		return f
	}
	var notes []string
	o.Note = func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	p := PushOptions{Message: "A model", Card: "Trained with", Replaces: func(path string) bool { return strings.HasPrefix(path, "model") }}
	files := map[string][]byte{"README.md": []byte("Trained with it\n"), "model-1.safetensors": random(3, 100)}
	for range 2 {
		_, err := pushed(t, o, "hf:o/m", files, p)
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{"README.md", "model-1.safetensors", "old.safetensors", "notes.txt"},
			slices.Collect(maps.Keys(s.Files("models/o/m", "main"))))
	}
	require.Len(t, notes, 1, "the second README.md that is replaced is of the first push")
	assert.Contains(t, notes[0], "README.md, which gpupipe has not written, is replaced: "+s.URL()+"/o/m/blob/")
	_, err := pushed(t, o, "hf:o/none", files, p)
	require.ErrorContains(t, err, "the Hub forbids access")
}

func TestSilentCommitEnds(t *testing.T) {
	s := &hubserver.Server{Token: "hf_secret"}
	o := start(t, s)
	o.Token, o.Idle, o.Answer = "hf_secret", time.Second/10, time.Second/10
	s.Fault = func(r *http.Request) hubserver.Fault {
		return hubserver.Fault{Silent: strings.Contains(r.URL.Path, "/commit/")}
	}
	_, err := push(t, o, "hf:o/m", map[string][]byte{"config.json": nil})
	require.ErrorContains(t, err, "the commit: the connection was silent for too long")
}
