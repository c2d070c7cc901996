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

// stepFlag is the flag --step of commands that use models.
type stepFlag struct {
	Step string `help:"Step of the run's checkpoint to use, or best: the lowest validation loss. Default: the newest." placeholder:"N"`
}

// of returns the folder of the checkpoint in a run folder; without the flag, the path that it is given.
func (f stepFlag) of(run string) (string, error) {
	step, err := f.number(run)
	if step == nil {
		return run, err
	}
	return filepath.Join(run, checkpoint.Folder, "step-"+strconv.Itoa(*step)), nil
}

// number returns the step; nil without the flag.
func (f stepFlag) number(run string) (*int, error) {
	if f.Step == "" {
		return nil, nil
	}
	step, err := stepIn(run, f.Step, "--step", "a step or best")
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
