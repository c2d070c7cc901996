package train

import (
	"context"
	"errors"

	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/data"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/layout"
	"github.com/gpupipe/gpupipe/pipeline/replicas"
	"github.com/gpupipe/gpupipe/runtime/device"
)

// Pipeline trains: an *engine.Engine, or a pipeline whose ranks are in other processes. See the methods of
// engine.Engine.
type Pipeline interface {
	Load() error
	Ranks() []engine.RankPlan
	Notes() []string
	Train(stop context.Context, source engine.Source, from, to int, each func(engine.Measured) error) (int, error)
	Evaluate(stop context.Context, source engine.Source, batches int, each func(engine.Measured) error) error
	Variables
	WriteWeights(param string, v engine.Version, data []byte) error
	WriteState(name string, data []byte) error
	SetTrace(t engine.Tracer) // nil: it writes the events recorded so far and ends the recording
	SetProfile(p engine.Profiler)
	Abort(cause error)
	Close() error
}

// Variables are what checkpoints hold: weights and the optimizer's state.
type Variables interface {
	Evaluated() engine.Version
	ReadWeights(param string, v engine.Version) (device.Pending, error)
	ReadState(name string) (device.Pending, error)
}

// Snapshotter is a Pipeline that can keep a copy of its variables. Checkpoints are written from it while training goes
// on.
type Snapshotter interface {
	Snapshot() Variables
}

// ErrTooFewDevices is wrapped by the error of a Remote that has not found a device for each rank. It ends the run,
// which can be resumed with another config.
var ErrTooFewDevices = errors.New("too few devices")

// Remote opens a pipeline whose ranks are in other processes. Errors of a lost process wrap device.ErrLost, here and
// from the pipeline's methods: the run closes the pipeline and opens another.
type Remote func(ctx context.Context, t RemoteTask) (Pipeline, error)

// RemoteTask is what the ranks of other processes train.
type RemoteTask struct {
	layout.Task
	Optimizer *optim.Optimizer
	Modules   map[string][]byte // contents, by file name, of the modules that build the model or the loss
	Aligned   []data.Aligned    // tensors of data.aligned
	Report    Report
	// Replicas are the settings of replicas that train on their own, as Config.Pipeline.Independent says.
	Replicas replicas.Settings
	// Event records what happens to them after a step, in the run's events.jsonl and for the user.
	Event func(kind string, step int, format string, args ...any)

	restale func(stale int) (*optim.Optimizer, error)
}

// At is the task with the config that a planner of several machines has chosen, which may have another depth, and the
// optimizer for as many stale microbatches as that depth has. From then on the run keeps that number, because its bits
// depend on it.
func (t RemoteTask) At(c config.Config) (RemoteTask, error) {
	optimizer, err := t.restale(c.Stale())
	t.Config, t.Optimizer = c, optimizer
	return t, err
}

// remoteTask is the job as other processes take it.
func (j *job) remoteTask() (RemoteTask, error) {
	modules, err := j.hooks.GraphModules()
	return RemoteTask{Task: j.layoutTask(), Optimizer: j.optimizer, Modules: modules, Aligned: j.corpus.train.Aligned(),
		Report: j.options.Report, Replicas: j.replicaSettings(), Event: j.journal.noteEvent, restale: j.restale}, err
}

// restale gives the run a number of stale microbatches and returns the optimizer for it.
func (j *job) restale(stale int) (*optim.Optimizer, error) {
	if stale == j.config.Stale() {
		return j.optimizer, nil
	}
	j.config.Pipeline.StaleMicrobatches = config.StaleMicrobatches(stale)
	err := j.makeOptimizer(context.Background())
	return j.optimizer, err
}
