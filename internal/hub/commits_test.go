package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A run that goes on keeps the commit of a name, whatever branch or tag it has. A commit that is given is another wish.
func TestCommits(t *testing.T) {
	first, second := strings.Repeat("a", 40), strings.Repeat("b", 40)
	c := Commits{}
	for _, text := range []string{"hf:o/m@" + first, "hf:datasets/o/d/x@" + first + ":train", "hf:datasets/o/d@" + second + ":validation",
		"hf:o/two@" + first, "hf:o/two@" + second, "hf:o/two@" + first, "hf:o/branch@dev", "a.txt", "hf:a/b/"} {
		c.Record(text)
	}
	for text, want := range map[string]string{
		"hf:o/m":                         "hf:o/m@" + first,
		"hf:o/m@v2":                      "hf:o/m@" + first,
		"https://huggingface.co/o/m":     "hf:o/m@" + first,
		"hf:o/m@" + second:               "hf:o/m@" + second,
		"hf:o/m/sub":                     "hf:o/m/sub",
		"hf:datasets/o/d/x:train":        "hf:datasets/o/d/x@" + first + ":train",
		"hf:datasets/o/d:validation":     "hf:datasets/o/d@" + second + ":validation",
		"hf:datasets/o/d:train":          "hf:datasets/o/d:train",
		"hf:datasets/o/d@dev:validation": "hf:datasets/o/d@" + second + ":validation",
		"hf:o/two":                       "hf:o/two",
		"hf:o/branch":                    "hf:o/branch",
		"o/m":                            "o/m",
		"a.txt":                          "a.txt",
	} {
		assert.Equal(t, want, c.Keep(text), text)
		assert.Equal(t, text, Commits(nil).Keep(text))
		if strings.Contains(text, "@") {
			want = text
		}
		assert.Equal(t, want, c.KeepNewest(text), text)
	}
}

// Each revision of a name has a commit of its own, the first that it had.
func TestPins(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	first, second := strings.Repeat("a", 40), strings.Repeat("b", 40)
	is := func(revision, commit string) {
		at := filepath.Join(Cache(), "models--o--m")
		require.NoError(t, os.MkdirAll(filepath.Join(at, "snapshots", commit), 0o777))
		require.NoError(t, os.MkdirAll(filepath.Join(at, "refs"), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(at, "refs", revision), []byte(commit), 0o666))
	}
	is("main", first)
	is("v2", second)
	p := Pins{}
	for range 2 {
		for text, want := range map[string]string{"hf:o/m": "hf:o/m@" + first, "https://huggingface.co/o/m": "hf:o/m@" + first,
			"hf:o/m@v2": "hf:o/m@" + second, "hf:o/m@" + second: "hf:o/m@" + second, "hf:o/absent": "hf:o/absent", "o/m": "o/m", "a.txt": "a.txt"} {
			assert.Equal(t, want, p.Pin(text), text)
		}
		assert.Equal(t, Pins{"hf:o/m": first, "hf:o/m@v2": second}, p)
		is("v2", first)
		is("main", second)
	}
	assert.Equal(t, Name{ID: "o/m", Revision: second}, p.Of(Name{ID: "o/m", Revision: "v2"}))
	assert.Equal(t, Name{ID: "o/m", Revision: "v3"}, p.Of(Name{ID: "o/m", Revision: "v3"}))
}
