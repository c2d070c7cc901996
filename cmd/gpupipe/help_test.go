package main

import (
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/train"
	"github.com/stretchr/testify/assert"
)

func TestHelpAndVersion(t *testing.T) {
	code, out, _ := command("help", "hook", "check")
	assert.Equal(t, exitOK, code)
	assert.Contains(t, out, "Usage: gpupipe hook check <file>")
	code, out, _ = command("help")
	assert.Equal(t, exitOK, code)
	assert.Contains(t, out, "Examples:")
	code, out, _ = command("version")
	assert.Equal(t, exitOK, code)
	assert.True(t, strings.HasPrefix(out, "gpupipe "), out)
	for args, want := range map[string]string{
		"trian":       "gpupipe: no such command: gpupipe trian (did you mean train?)\nSee gpupipe --help.\n",
		"nosuch":      "gpupipe: no such command: gpupipe nosuch\nSee gpupipe --help.\n",
		"hook chekc":  "no such command: gpupipe hook chekc (did you mean check?)\nSee gpupipe hook --help.\n",
		"train again": `gpupipe train has no commands of its own: found "again"`,
	} {
		code, out, errs := command(append([]string{"help"}, strings.Split(args, " ")...)...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want)
		assert.Empty(t, out)
	}
}

// An error of a command names its help, and what was meant.
func TestWrongArguments(t *testing.T) {
	for args, want := range map[string]string{
		"trian":                     "unexpected argument trian, did you mean \"train\"?\nSee gpupipe --help.",
		"hook check":                "See gpupipe hook check --help.",
		"train --sett a=b":          "unknown flag --sett, did you mean \"--set\"?\nSee gpupipe train --help.",
		"train --steps 3":           "unknown flag --steps (did you mean --set train.steps=…?)\nSee gpupipe train --help.",
		"train --batchsize 3":       "(did you mean --set train.batch_size=…?)",
		"generate x --lr 3":         "unknown flag --lr\nSee gpupipe generate --help.",
		"train --set trian.steps=3": "(did you mean train?)",
		"train --set steps=3":       "(did you mean train.steps?)",
		"train --set optimizer.nam=sgd --set model.preset=tiny": "(did you mean name?)",
		"config train.stepz": "(did you mean train.steps?)",
	} {
		code, _, errs := command(strings.Split(args, " ")...)
		assert.Equal(t, exitMistake, code, args)
		assert.Contains(t, errs, want, args)
	}
}

func TestMeasuredOn(t *testing.T) {
	some := train.Validation{Text: "val.txt", Batches: 3, Of: 9, Tokens: 1920}
	assert.Equal(t, "val.txt, the first 3 of 9 batches (train.eval_batches), 1,920 tokens; the unigram entropy of that text is 3.0000",
		measuredOn(some, 3))
	assert.Equal(t, "val.txt, all 9 batches, 1,920 tokens", measuredOn(train.Validation{Text: "val.txt", Batches: 9, Of: 9, Tokens: 1920},
		0))
}
