package study

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/runs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The file of a study, and its folder, mean the same study in every working directory.
func TestAStudyGoesOnFromEveryFolder(t *testing.T) {
	for name, path := range map[string]string{"file": "../project/g.yaml", "folder": "../project/studies/mine"} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, dir := range []string{"project", "elsewhere"} {
				require.NoError(t, os.Mkdir(filepath.Join(root, dir), 0o777))
			}
			t.Chdir(filepath.Join(root, "project"))
			require.NoError(t, os.WriteFile("a.txt", nil, 0o666))
			require.NoError(t, os.WriteFile("g.yaml",
				[]byte(smallBase+"optimizers: {adamw: {lrs: [0.001]}}\nmodes: [sync, delay]\nsummaries: results\ndir: studies/mine\n"),
				0o666))
			g, err := Load("g.yaml", []string{"data.val_fraction=0.2"})
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			f := faked(func(Run) float64 { return 2 })
			f.Step = afterTwo(func(Run) { stop() })
			_, err = execute(ctx, g, runs.Options{Train: f.Train}, nil)
			require.ErrorIs(t, err, runs.ErrInterrupted)

			t.Chdir(filepath.Join(root, "elsewhere"))
			var now []string
			if name == "file" {
				now = []string{"data.val_fraction=0.2"}
			}
			g, err = Load(path, now)
			require.NoError(t, err)
			f.Step = nil
			_, err = execute(t.Context(), g, runs.Options{Train: f.Train}, nil)
			require.NoError(t, err)
			assert.Equal(t, 6*4, f.Steps, "nothing is trained twice")
			last := f.Begun[len(f.Begun)-1]
			assert.Equal(t, []string{filepath.Join(root, "project", "a.txt")}, last.Data.Train)
			assert.Equal(t, 0.2, last.Data.ValFraction)
			assert.FileExists(t, filepath.Join(root, "project", "studies", "mine", "table.md"))
			summary, err := os.ReadFile(filepath.Join(root, "project", "results", filepath.Base(last.Run.Dir), "config.yaml"))
			require.NoError(t, err)
			assert.NotContains(t, string(summary), root)
			entries, err := os.ReadDir(".")
			require.NoError(t, err)
			assert.Empty(t, entries, "nothing is written here")
		})
	}
}
