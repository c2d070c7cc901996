package engine

import (
	"time"

	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/gpupipe/gpupipe/pipeline/trace"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Options describe what to train, how and where.
type Options struct {
	Layout         Layout
	Model          model.Model
	MicrobatchSize int              // sequences per microbatch
	Microbatches   int              // per batch and replica
	Optimizer      *optim.Optimizer // of all parameters; Contributions names their gradients
	Loss           model.Loss       // of training; nil: cross-entropy, which evaluations always compute
	Inputs         model.Inputs     // data that training reads besides tokens and targets
	Wire           Wire             // formats between ranks; the zero value is exact
	Schedule       Schedule
	Devices        []device.Device // by rank; nil: the rank is in another process. The engine does not close them
	Remote         Remote          // sends to the ranks of other processes; nil: there are none
	Execute        Executor        // nil: runtime/exec with the static choice of kernels
	QueueDepth     int             // runs that a device's queue may hold, at least 1; 0: a few
	RankPrefix     string          // of the names of ranks, where several engines train together
	HostMemory     int64           // bytes; devices share at most a quarter of it, see Engine.Notes; 0: all that the host has
}

// Schedule returns the computation of some batches.
type Schedule func(batches int) (*schedule.Generator, error)

// Batch is the data of a batch by variable, as model.Config.Variables lists them: little-endian, by replica, then by
// microbatch. Scalars of a batch are repeated for each microbatch. An evaluation needs the variables that
// Inputs.EvaluationReads reports.
type Batch map[string][]byte

// Source provides data. Each rank that reads data of a batch calls it from its own goroutine and does not modify the
// result.
type Source interface {
	Batch(batch int64) (Batch, error)
}

// Preparer is a Source that may be unable to provide a batch. Prepare waits until the batch is available; ranks call it
// before any of them begins the batch. After an error no batch from that one on begins, and the batches before it are
// finished. Later calls return the same error.
type Preparer interface {
	Prepare(batch int64) error
}

// Remote sends to ranks of other processes.
type Remote interface {
	// Send hands a message and its payload, the bytes of each tensor, to the process of a rank. began is when the
	// device began to read the payload. Send does not block.
	Send(to int, m stage.Message, payload [][]byte, began time.Time)
}

// Tokens is a Source of tokens and targets, sequence after sequence, and nothing else.
type Tokens func(batch int64) (tokens, targets []int32, err error)

// Batch implements Source.
func (f Tokens) Batch(batch int64) (Batch, error) {
	tokens, targets, err := f(batch)
	if err != nil {
		return nil, err
	}
	return Batch{model.TokensInput: exec.IntBytes(tokens), model.TargetsInput: exec.IntBytes(targets)}, nil
}

// Tracer records a timeline; *trace.Writer is one. Events of one track do not overlap.
type Tracer interface {
	Complete(track string, c trace.Category, name string, start time.Time, dur time.Duration, args map[string]any)
	Flow(name, from string, sent time.Time, to string, received time.Time)
}

const defaultQueueDepth = 3
