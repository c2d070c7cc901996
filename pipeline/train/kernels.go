package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/runtime/tune"
)

// kernelsFile, in the run folder and in every checkpoint, holds the kernels that were chosen by timing: with others the
// last bits would differ. It is absent where the choice was the static one, for want of memory too: that choice then holds, however much
// there is when the run is resumed.
const kernelsFile = "kernels.json"

// kernels is the content of kernelsFile.
func (r *run) kernels() []byte {
	if r.Tune == nil || r.layout.Static {
		return nil
	}
	out, err := json.MarshalIndent(r.Tune.Used(), "", " ")
	if err != nil {
		panic(err) // names and finite times
	}
	return append(out, '\n')
}

// keepKernels writes the choices down, for this run and for others on this machine.
func (r *run) keepKernels() error {
	if r.Tune == nil {
		return nil
	}
	if n := r.Tune.Strays(); n > 0 && !r.layout.Static {
		r.Report.Note("%d kernels are not those that the run began with, since the device, its driver or gpupipe has changed: it goes on, but not to the same bits", n)
	}
	path := filepath.Join(r.Run.Dir, kernelsFile)
	if text := r.kernels(); text != nil {
		if err := writeFile(path, text); err != nil {
			return err
		}
	} else if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // it is of before the run was resumed
		return err
	}
	if err := r.Tune.Save(); err != nil {
		r.Report.Note("the choices of kernels are not kept for the next run: %v", err)
	}
	return nil
}

// pinKernels goes on with the kernels of a checkpoint.
func (r *run) pinKernels(c *checkpoint.Checkpoint) error {
	if !c.Has(kernelsFile) {
		r.Tune = nil
		return nil
	}
	text, err := c.File(kernelsFile)
	if err != nil {
		return err
	}
	var choices map[string]tune.Choice
	if err := json.Unmarshal(text, &choices); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(c.Dir, kernelsFile), err)
	}
	if r.Tune == nil {
		if r.Tune, err = tune.Open("", nil); err != nil {
			return err
		}
	}
	r.Tune.Pin(choices)
	return nil
}
