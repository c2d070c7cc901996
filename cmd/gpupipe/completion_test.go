package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// completed returns the words that a shell completes some words to.
func completed(t *testing.T, shell string, words ...string) []string {
	t.Helper()
	code, out, errs := command(append([]string{"complete", "--shell", shell, "--"}, words...)...)
	require.Equal(t, exitOK, code, errs)
	var all []string
	for line := range strings.Lines(out) {
		text, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		all = append(all, text)
	}
	return all
}

func TestCompletion(t *testing.T) {
	for _, c := range []struct {
		words, want []string
	}{
		{[]string{"tra"}, []string{"train", "trace"}},
		{[]string{"hook", ""}, []string{"check", "bench", "new"}},
		{[]string{"train", "--t"}, []string{"--tune"}},
		{[]string{"train", "--no"}, []string{"--no-tune"}},
		{[]string{"train", "--set", "optimizer.adamw."}, []string{"optimizer.adamw.lr=", "optimizer.adamw.betas=", "optimizer.adamw.eps="}},
		{[]string{"train", "c.yaml", "--set", "lr.schedule="}, []string{"lr.schedule=cosine", "lr.schedule=linear", "lr.schedule=wsd",
			"lr.schedule=constant"}},
		{[]string{"train", "--set", "data.shuffle=t"}, []string{"data.shuffle=true"}},
		{[]string{"train", "--json", "--device", "v"}, []string{"vulkan:0"}},
		{[]string{"export", "--dtype=b"}, []string{"--dtype=bf16"}},
		{[]string{"init", "--for", ""}, []string{"cpu", "gpu", "2gpus"}},
		{[]string{"schedule", "--name", "2"}, []string{"2bw"}},
		{[]string{"config", "lr.m"}, []string{"lr.min_ratio"}},
		{[]string{"completion", ""}, []string{"bash", "zsh", "fish"}},
		{[]string{"wor"}, nil},
		{[]string{"train", ""}, nil}, // file names, which the shell completes
	} {
		assert.Equal(t, c.want, completed(t, "zsh", c.words...), c.words)
	}
	assert.Contains(t, completed(t, "fish"), "train")
	assert.Equal(t, []string{"cosine"}, completed(t, "bash", "train", "--set", "lr.schedule", "=", "cos"))
	assert.Equal(t, []string{"0"}, completed(t, "bash", "train", "--device", "vulkan", ":"))
	_, out, _ := command("complete", "--shell", "fish", "--", "trac")
	assert.Equal(t, "trace\tShow stage utilization of a run\n", out)
}

// The script works in bash, which splits words at = and :.
func TestCompletionInBash(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	run := func(words string) string {
		script := `source <("$0" completion bash); COMP_WORDS=("$0" ` + words +
			`); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _gpupipe "$0"; echo "${COMPREPLY[*]}"`
		cmd := exec.Command("bash", "-c", script, self)
		cmd.Env, cmd.Stderr = append(os.Environ(), "GPUPIPE_TEST_COMMAND=1"), os.Stderr
		out, err := cmd.Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	assert.Equal(t, "train trace", run("tra"))
	assert.Equal(t, "cosine", run("train --set lr.schedule = cos"))
	assert.Equal(t, "train.steps=", run("train --set train.st"))
}
