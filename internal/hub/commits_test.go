package hub

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
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
	}
}
