package train

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// weights are the numbers that a run's variables start from. Variables that none of the sources names start at zero.
type weights struct {
	params []model.Parameter
	seed   uint64              // when model is nil
	model  *safetensors.Reader // of parameters
	state  *safetensors.Reader // of the optimizer's variables, when a run is resumed
	names  []string            // of the optimizer's variables
	begun  bool                // the state is from before there was optim.InitializedVariable, and an update was applied
	// settled reads a parameter's weights y; nil: it is not they that are wanted
	settled func(param string) ([]float32, error)
}

// openWeights checks that a file or folder of safetensors holds exactly the model's parameters, and reads none.
func openWeights(path string, m model.Model) (*weights, error) {
	r, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	w := &weights{params: m.Parameters(), model: r}
	if err := checkTensors(path, r, types(w.params), m.Redundant); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return w, nil
}

func types(ps []model.Parameter) map[string]graph.Type {
	m := map[string]graph.Type{}
	for _, p := range ps {
		m[p.Name] = p.Type
	}
	return m
}

// checkTensors compares the tensors of a file with those wanted, by name, shape and dtype. The file may hold redundant tensors, too.
func checkTensors(path string, r *safetensors.Reader, want map[string]graph.Type, redundant func(tensor string) bool) error {
	if err := checkPresent(path, r, want); err != nil {
		return err
	}
	for _, t := range r.Tensors() {
		if _, ok := want[t.Name]; !ok && !redundant(t.Name) {
			return fmt.Errorf("%s: tensor %q (%v) belongs to no parameter of this model", path, t.Name, graph.Shape(t.Shape))
		}
	}
	return nil
}

// noneRedundant is for checkTensors of files without redundant tensors.
func noneRedundant(string) bool { return false }

// checkPresent is checkTensors where the file may hold more.
func checkPresent(path string, r *safetensors.Reader, want map[string]graph.Type) error {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		t, ok := r.Lookup(name)
		if !ok {
			return fmt.Errorf("%s: tensor %q is missing, expected %v", path, name, want[name])
		}
		if !graph.Shape(t.Shape).Equal(want[name].Shape) {
			return fmt.Errorf("%s: tensor %q has shape %v, expected %v", path, name, graph.Shape(t.Shape), want[name].Shape)
		}
		floats := []safetensors.DType{safetensors.F64, safetensors.F32, safetensors.F16, safetensors.BF16}
		if want[name].DType != graph.F32 {
			floats = []safetensors.DType{safetensors.DType(strings.ToUpper(want[name].DType.String()))}
		}
		if !slices.Contains(floats, t.DType) {
			return fmt.Errorf("%s: tensor %q is %s, expected one of %v", path, name, t.DType, floats)
		}
	}
	return nil
}

// upload writes the parameters to a session's variables, one tensor at a time.
func (w *weights) upload(s engine.Session) error {
	for _, p := range w.params {
		data, err := w.initial(p)
		if err != nil {
			return err
		}
		if err := s.WriteAt(p.Name, nil, exec.F32Bytes(data)); err != nil {
			return err
		}
	}
	return nil
}

// toPipeline writes everything to a pipeline, one tensor at a time. Before the first step of a delayed run the weights of the
// second are those of the first.
func (w *weights) toPipeline(e *engine.Engine, delay int) error {
	for _, p := range w.params {
		data, err := w.initial(p)
		if err != nil {
			return err
		}
		if err := e.WriteWeights(p.Name, engine.Current, exec.F32Bytes(data)); err != nil {
			return err
		}
		if delay == 0 {
			continue
		}
		if w.state != nil {
			if data, err = w.state.Float32(pendingName(p.Name)); err != nil {
				return usererror.New(err)
			}
		}
		if err := e.WriteWeights(p.Name, engine.Next, exec.F32Bytes(data)); err != nil {
			return err
		}
	}
	for _, name := range w.names {
		data, err := w.stateOf(name)
		if err != nil {
			return usererror.New(err)
		}
		if err := e.WriteState(name, data); err != nil {
			return err
		}
	}
	return nil
}

// stateOf reads one of the optimizer's variables.
func (w *weights) stateOf(name string) ([]byte, error) {
	if w.begun && name == optim.InitializedVariable {
		return []byte{1, 0, 0, 0}, nil
	}
	return w.state.Bytes(name)
}

// pendingName is what a checkpoint of a delayed run calls a parameter's next weights, x_{t+1} at step t.
func pendingName(param string) string { return "pending/" + param }

func (w *weights) initial(p model.Parameter) (x []float32, err error) {
	switch {
	case w.model == nil:
		return p.Initial(w.seed), nil
	case w.settled != nil:
		x, err = w.settled(p.Name)
	default:
		x, err = w.model.Float32(p.Name)
	}
	return x, usererror.New(err)
}

func (w *weights) close() error {
	var errs []error
	for _, r := range []*safetensors.Reader{w.model, w.state} {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	return errors.Join(errs...)
}
