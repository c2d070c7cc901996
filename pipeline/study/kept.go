package study

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/internal/atomicfile"
	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/pipeline/config"
)

// outcomeFile, in a run's folder, is written when the run has ended, and only then.
const outcomeFile = "outcome.json"

type outcomeJSON struct {
	ValLoss  *float64 `json:"val_loss"`           // nats per token
	Diverged string   `json:"diverged,omitempty"` // how; there is no loss then
}

// keep writes a run's outcome into its folder.
func (g *Grid) keep(r Run, o outcome) error {
	return writeJSON(filepath.Join(g.Folder(r), outcomeFile), outcomeJSON{number(o.loss), o.diverged})
}

func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return writeFile(path, append(text, '\n'))
}

func writeFile(path string, text []byte) error {
	return usererror.New(atomicfile.Write(path, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	}))
}

// kept looks for what an earlier study left of a run. One of another config is an error: nothing is mixed up, and nothing
// overwritten.
func (g *Grid) kept(r Run) (o outcome, ended bool, err error) {
	dir := g.Folder(r)
	if err := g.sameConfig(r, filepath.Join(dir, "config.yaml")); err != nil {
		return o, false, usererror.New(err)
	}
	path := filepath.Join(dir, outcomeFile)
	text, err := strictyaml.ReadSmall(path)
	if errors.Is(err, os.ErrNotExist) {
		return o, false, nil
	}
	var f outcomeJSON
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	switch {
	case err != nil:
		return o, false, usererror.New(fmt.Errorf("%s: %w", path, err))
	case f.Diverged != "":
		return outcome{math.Inf(1), f.Diverged}, true, nil
	case f.ValLoss == nil:
		return o, false, usererror.New(fmt.Errorf("%s: neither val_loss nor diverged: remove the file to train again", path))
	}
	return outcome{*f.ValLoss, ""}, true, nil
}

// sameConfig compares the config that an earlier run used with the present one; where things lie may differ.
func (g *Grid) sameConfig(r Run, path string) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	old, err := config.Load(path, nil)
	if err != nil {
		return err
	}
	now, err := g.Config(r)
	if err != nil {
		return err
	}
	old.Run, old.Pipeline.Devices = now.Run, now.Pipeline.Devices
	old.Pipeline.Isolate, old.Pipeline.Restarts, old.Pipeline.Watchdog = now.Pipeline.Isolate, now.Pipeline.Restarts, now.Pipeline.Watchdog
	was, err := strictyaml.Flatten(old.YAML())
	if err != nil {
		return err
	}
	is, err := strictyaml.Flatten(now.YAML())
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(is)) {
		if was[key] != is[key] {
			return fmt.Errorf("%s: %s: found %s, but the study has %s now: choose another dir for the study, or remove the run's folder",
				path, key, was[key], is[key])
		}
	}
	return nil
}
