package train

import (
	"errors"
	"math/bits"
	"path/filepath"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// logs are the files of a run folder with a line for each step, or for some.
type logs struct {
	steps   *metrics.Log // metrics.jsonl
	system  *metrics.Log // system.jsonl
	experts *metrics.Log // experts.jsonl; nil: the model has no experts
}

// open continues the logs of a run that has recorded the steps up to done.
func (l *logs) open(dir string, done int, experts bool) (err error) {
	if l.steps, err = metrics.Resume(filepath.Join(dir, metricsFile), done); err != nil {
		return err
	}
	if l.system, err = metrics.Resume(filepath.Join(dir, systemFile), done); err != nil || !experts {
		return err
	}
	l.experts, err = metrics.Resume(filepath.Join(dir, expertsFile), done)
	return err
}

// recordLoads records the load of each expert by layer, at some steps: see recordsLoads.
func (l *logs) recordLoads(step, steps int, routing []engine.Routing) error {
	if l.experts == nil || len(routing) == 0 || !recordsLoads(step, steps) {
		return nil
	}
	var loads []metrics.Array
	for _, r := range routing {
		loads = append(loads, metrics.Array{Name: loadsName(r.Layer), Values: r.Load})
	}
	return l.experts.AppendArrays(step, loads...)
}

// recordsLoads reports whether the loads of a step are recorded: each of the first 255 steps, every second one up to
// 511, every fourth one up to 1023, and so on, and the last one. So a run of any length has a few hundred records,
// whose distance is below a hundredth of the steps so far.
func recordsLoads(step, steps int) bool {
	return step == steps || step%(1<<max(0, bits.Len(uint(step))-8)) == 0
}

func (l *logs) close() error {
	var errs []error
	for _, log := range []*metrics.Log{l.steps, l.system, l.experts} {
		if log != nil {
			errs = append(errs, log.Close())
		}
	}
	return errors.Join(errs...)
}
