package main

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/inference"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// bestStep names the checkpoint with the lowest validation loss in place of a step.
const bestStep = "best"

// fromFlag is the flag --from of commands that train.
type fromFlag struct {
	From string `help:"Continue from an earlier checkpoint of the run: step-N, best, or a checkpoint's folder. Later checkpoints are set aside; with another run.dir the run branches off." placeholder:"CHECKPOINT"`
}

// fromHelp explains the flag.
const fromHelp = `--from step-N goes back to an earlier checkpoint. Later checkpoints and a copy of the measurements move into the folder aside in the run
folder, which is a run of its own: nothing is deleted. With --set run.dir=NEW the run branches off into a new folder, and the old one stays
as it is. --from best goes back to the checkpoint with the lowest validation loss.
`

// checkpoint returns the checkpoint that the flag names, of the run that the command trains; nil without the flag.
func (f fromFlag) checkpoint(c trainCommand) (*train.From, error) {
	if f.From == "" {
		return nil, nil
	}
	run, err := f.run(c)
	if err != nil {
		return nil, err
	}
	step, err := stepIn(run, strings.TrimPrefix(filepath.Base(f.From), "step-"), "--from", "step-N, best or a checkpoint's folder")
	if err != nil {
		return nil, err
	}
	return &train.From{Run: run, Step: step}, nil
}

// run returns the folder of the run that the command continues, be it from its newest checkpoint or the flag's.
func (f fromFlag) run(c trainCommand) (string, error) {
	if dir := runOf(filepath.Clean(f.From)); dir != "" {
		return dir, nil
	}
	path := cmp.Or(c.Path, c.Config)
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return path, nil
	}
	if f.From != "" {
		set := slices.DeleteFunc(slices.Clone(c.Set), func(s string) bool { return strings.HasPrefix(s, "run.dir=") })
		if dir, err := config.RunDir(path, set); err == nil && dir != "" {
			return dir, nil
		} // else there is no other folder to branch off from
	}
	return config.RunDir(path, c.Set)
}

// modelFlags choose the model that a command uses.
type modelFlags struct {
	From      string            `arg:"" name:"model" hub:"model" help:"A run folder, a checkpoint, a GGUF file, a folder in Hugging Face's layout, or hf:org/name."`
	Step      string            `help:"Step of the run's checkpoint to use, or best: the lowest validation loss. Default: the newest." placeholder:"N"`
	Tokenizer string            `hub:"tokenizer" help:"bytes, gpt2, a tokenizer.json or tokenizer.model, or its folder. Default: the model's own." placeholder:"NAME"`
	Weights   inference.Version `help:"Weights of a run with delayed updates: x, at which gradients are computed, or y, which include every update." enum:"x,y" default:"x"`
}

// open opens the model.
func (f modelFlags) open(a *app) (*inference.Source, error) {
	from, err := f.place()
	if err != nil {
		return nil, err
	}
	return inference.OpenWeights(from, nil, f.Tokenizer, f.Weights, a.note)
}

// place returns the folder of the checkpoint in a run folder; without --step, the path of the model.
func (f modelFlags) place() (string, error) {
	step, err := f.number()
	if step == nil {
		return f.From, err
	}
	return filepath.Join(f.From, checkpoint.Folder, "step-"+strconv.Itoa(*step)), nil
}

// number returns the step; nil without --step.
func (f modelFlags) number() (*int, error) {
	if f.Step == "" {
		return nil, nil
	}
	step, err := stepIn(f.From, f.Step, "--step", "a step or best")
	if err != nil {
		return nil, err
	}
	return &step, nil
}

// stepIn returns the step of a checkpoint in a run folder that is named by its number, or as the best.
func stepIn(run, text, flag, expected string) (int, error) {
	if text == bestStep {
		best, err := train.BestCheckpoint(run)
		return best.Step, usererror.New(err)
	}
	step, err := strconv.Atoi(text)
	if err != nil || step < 0 {
		return 0, usererror.Errorf("%s: found %q, expected %s", flag, text, expected)
	}
	steps, err := checkpoint.Steps(run)
	switch {
	case err != nil:
		return 0, usererror.New(err)
	case len(steps) == 0:
		return 0, usererror.New(errors.New(flag + ": " + run + " has no checkpoints: expected the folder of a run"))
	case !slices.Contains(steps, step):
		slices.Reverse(steps)
		return 0, usererror.Errorf("%s: %s has no checkpoint of step %d, expected one of %s", flag, run, step, printable.List(steps))
	}
	return step, nil
}
