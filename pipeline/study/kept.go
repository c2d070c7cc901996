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

// outcomeFile is the file of a run's outcome, in the run's folder. It exists only if the run has ended.
const outcomeFile = "outcome.json"

type outcomeJSON struct {
	ValLoss  *float64 `json:"val_loss"`           // nats per token
	Diverged string   `json:"diverged,omitempty"` // the error of a run that diverged; it has no loss
}

// keep writes a run's outcome into its folder.
func keep(dir string, o outcome) error {
	return writeJSON(filepath.Join(dir, outcomeFile), outcomeJSON{number(o.loss), o.diverged})
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

// kept returns the outcome of a run in an earlier execution. It is an error if that run had another config: kept
// overwrites nothing and does not mix results.
func kept(g *Grid, r Run) (o outcome, ended bool, err error) {
	dir := g.Folder(r)
	if err := sameConfig(g, r, filepath.Join(dir, "config.yaml")); err != nil {
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

// sameConfig compares the config of an earlier run with the present one. Folders, devices and fault handling may
// differ.
func sameConfig(g *Grid, r Run, path string) error {
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
	old.Pipeline.Processes = now.Pipeline.Processes
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
