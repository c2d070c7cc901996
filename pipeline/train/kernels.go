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

// kernelsFile, in the run folder and in every checkpoint, holds the kernels that were chosen by timing: other kernels
// would change the last bits. It is absent with the static choice, also if that was used for lack of memory: a resumed
// run then keeps the static choice, however much memory there is.
const kernelsFile = "kernels.json"

// kernels is the content of kernelsFile, or nil.
func (s *session) kernels() []byte {
	if s.tune == nil || s.layout.Static {
		return nil
	}
	out, err := json.MarshalIndent(s.tune.Used(), "", " ")
	if err != nil {
		panic(err) // names and finite times
	}
	return append(out, '\n')
}

// writeKernels writes the choices for this run, and for other runs on this machine.
func (s *session) writeKernels() error {
	if s.tune == nil {
		return nil
	}
	note := s.job.options.Report.Note
	if n := s.tune.Strays(); n > 0 && !s.layout.Static {
		note("%d kernels are not those that the run began with, since the device, its driver or gpupipe has changed: it goes on, but not to the same bits", n)
	}
	path := filepath.Join(s.job.config.Run.Dir, kernelsFile)
	if text := s.kernels(); text != nil {
		if err := writeFile(path, text); err != nil {
			return err
		}
	} else if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // it is from before the run was resumed
		return err
	}
	if err := s.tune.Save(); err != nil {
		note("the choices of kernels are not kept for the next run: %v", err)
	}
	return nil
}

// pinKernels uses the kernels of a checkpoint.
func (s *session) pinKernels(c *checkpoint.Checkpoint) error {
	if !c.Has(kernelsFile) {
		s.tune = nil
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
	if s.tune == nil {
		if s.tune, err = tune.Open("", nil); err != nil {
			return err
		}
	}
	s.tune.Pin(choices)
	return nil
}
