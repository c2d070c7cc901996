// Package engine trains a model on a pipeline: it builds the programs of each line, loads them on the line's device, and
// carries out the effects of the stage machines, a goroutine a line. What is computed does not depend on the layout.
package engine

import (
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Options say what is trained, and how and where.
type Options struct {
	Layout
	Model          model.Model
	MicrobatchSize int              // sequences
	Microbatches   int              // of a batch on one replica
	Optimizer      *optim.Optimizer // of all parameters; their gradients are those that Contributions names
	Loss           model.Loss       // what is trained; nil: cross-entropy, which is what evaluations are of
	Inputs         model.Inputs     // what training reads of a batch besides tokens and targets
	Schedule       Schedule
	Devices        []device.Device // a line each; the engine does not close them
	Execute        Executor        // nil: runtime/exec with the static choice of kernels
	Trace          Tracer          // nil: none; may be set as long as nothing runs
	Profile        Profiler        // nil: nothing is measured; may be set as long as nothing runs
	Depth          int             // actions that a device's queue may hold, at least 1; 0: a few
	HostMemory     int64           // bytes; devices share a quarter of it at most, see Engine.Notes; 0: as much as there is
}

// Schedule gives the computation of some batches.
type Schedule func(batches int) (*schedule.Generator, error)

// Batch is a batch's data by variable, as model.Config.Variables lists them: little-endian, microbatch after microbatch of one
// replica after the other. What is one for a batch, its scalars, comes again for each microbatch. An evaluation reads tokens and
// targets only.
type Batch map[string][]byte

// Source gives data. Each line that reads some of a batch asks for it, from a goroutine of its own, and changes nothing in it.
type Source interface {
	Batch(batch int64) (Batch, error)
}

// Preparer is a Source that may be unable to give a batch. Prepare waits for one; lines ask before any begins it. After an error, always the
// same, no batch from that one on is begun, and those before it are finished.
type Preparer interface {
	Prepare(batch int64) error
}

// Tokens is a Source of tokens and targets, sequence after sequence, and nothing else.
type Tokens func(batch int64) (tokens, targets []int32, err error)

// Batch is as a Source has it.
func (f Tokens) Batch(batch int64) (Batch, error) {
	tokens, targets, err := f(batch)
	if err != nil {
		return nil, err
	}
	return Batch{model.TokensInput: bytesOfI32(tokens), model.TargetsInput: bytesOfI32(targets)}, nil
}

// Tracer records a timeline; *trace.Writer is one. Events of one track do not overlap.
type Tracer interface {
	Complete(track string, c trace.Category, name string, start time.Time, dur time.Duration, args map[string]any)
	Flow(name, from string, sent time.Time, to string, received time.Time)
}

const defaultDepth = 3
