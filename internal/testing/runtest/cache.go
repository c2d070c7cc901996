package runtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Cached makes a commit of one digit, without files, the commit of a revision in the cache of the Hub, which
// HF_HUB_CACHE names.
func Cached(t *testing.T, folder, revision, digit string) (commit string) {
	t.Helper()
	commit = strings.Repeat(digit, 40)
	at := filepath.Join(os.Getenv("HF_HUB_CACHE"), folder)
	require.NoError(t, os.MkdirAll(filepath.Join(at, "snapshots", commit), 0o777))
	require.NoError(t, os.MkdirAll(filepath.Join(at, "refs"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(at, "refs", revision), []byte(commit), 0o666))
	return commit
}
