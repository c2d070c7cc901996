package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConfigListsKeys(t *testing.T) {
	code, out, errs := command("config")
	require.Equal(t, exitOK, code, errs)
	for _, k := range config.Keys() {
		assert.Contains(t, out, k.Name+":")
	}
	_, out, _ = command("config", "train.steps")
	assert.Equal(t, "train.steps: integer; default: 500\n    Number of steps.\n", out)
	_, out, _ = command("config", "lr")
	assert.Contains(t, out, "lr.schedule: text; default: cosine\n    Shape of the schedule after the warm-up. One of cosine, linear, wsd, constant.\n")
	code, _, errs = command("config", "learning")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, `key: found "learning", expected a key or a section`)
	_, out, _ = command("config", "--json-schema")
	assert.True(t, json.Valid([]byte(out)))
}

func TestInitWritesAConfig(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, target := range config.Targets() {
		file := target.Name + ".yaml"
		code, _, errs := command("init", file, "--for", target.Name, "--data", "a.txt")
		require.Equal(t, exitOK, code, errs)
		assert.Contains(t, errs, "gpupipe train "+file)
		c, err := config.Load(file, nil)
		require.NoError(t, err)
		assert.Equal(t, "runs/"+target.Name, c.Run.Dir)
		code, _, errs = command("init", file)
		assert.Equal(t, exitMistake, code)
		assert.Contains(t, errs, file+": the file exists, expected the name of a new one")
	}
	code, _, errs := command("init", "--for", "abacus")
	assert.Equal(t, exitMistake, code)
	assert.Contains(t, errs, `--for must be one of "cpu","gpu","2gpus"`)
	assert.NoFileExists(t, "run.yaml")
}

// The config that init writes for a CPU trains.
func TestInitTrains(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("a.txt", []byte(strings.Repeat("the cat sat on the mat. ", 4000)), 0o666))
	code, _, errs := command("init", "--data", "a.txt")
	require.Equal(t, exitOK, code, errs)
	code, out, errs := command("train", "run.yaml", "--device", "null", "--set", "train.steps=1")
	require.Equal(t, exitOK, code, errs)
	assert.Contains(t, out, "model.preset: tiny\n")
	assert.FileExists(t, filepath.Join("runs", "run", "config.yaml"))
}
