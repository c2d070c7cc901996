package userpath

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExpand(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("HOME", "/home/me")
	t.Setenv("USERPROFILE", "/home/me")
	t.Setenv("DATA", "/big/data")
	t.Setenv("EMPTY", "")
	require.NoError(t, os.WriteFile("~there$DATA", nil, 0o644))
	for path, want := range map[string]string{
		"a/b.txt": "a/b.txt", "a~/b": "a~/b", "~": filepath.FromSlash("/home/me"), "~/a/*.txt": filepath.FromSlash("/home/me/a/*.txt"), "$DATA/a.txt": "/big/data/a.txt",
		"x${DATA}y": "x/big/datay", "cost$": "cost$", "a$1": "a$1", "~there$DATA": "~there$DATA",
	} {
		got, err := Expand(path)
		assert.NoError(t, err)
		assert.Equal(t, want, got, path)
	}
	for path, want := range map[string]string{
		"$NO_SUCH_NAME/a": "$NO_SUCH_NAME/a: the environment variable NO_SUCH_NAME is not set",
		"${EMPTY}/a":      "the environment variable EMPTY is not set",
		"~you/a":          "found the home folder of another user, ~you",
	} {
		_, err := Expand(path)
		assert.ErrorContains(t, err, want)
	}
}
