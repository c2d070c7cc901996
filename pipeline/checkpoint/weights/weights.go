// Package weights reads the initial values of a run's variables: random weights, the weights in a folder, or a
// checkpoint's weights with the optimizer's state.
package weights

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/internal/printable"
	"github.com/gpupipe/gpupipe/internal/usererror"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/pretrained"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Source holds initial values. It reads each tensor when it is needed. Variables that it does not have start at zero.
type Source struct {
	path   string // of model, whose values must be finite; "": a checkpoint's
	params []model.Parameter
	inFile []model.Parameter   // as the file has params; nil: equal. See OpenExtended
	seed   uint64              // of random parameters, if model is nil
	model  *safetensors.Reader // of parameters
	gguf   *gguf.File          // of parameters, in place of model
	naming model.Naming        // of the tensors in model
	biases bool                // model has no balancing biases, which are zero then: it was trained without
	state  *safetensors.Reader // of the optimizer's variables, of a checkpoint
	names  []string            // of the optimizer's variables
	second Second              // of the checkpoint, which may differ from the run's
	begun  bool                // the checkpoint is from before optim.InitializedVariable existed, and an update was applied
	// settled reads a parameter's settled weights; nil: the weights are read from model. See Settle.
	settled func(param string) ([]float32, error)
	notes   []string // see Notes
}

// Notes are what the user should know of a file whose tensors are not read as its config has them.
func (s *Source) Notes() []string {
	if s == nil {
		return nil
	}
	return s.notes
}

// Random returns random weights.
func Random(m model.Model, seed uint64) *Source { return &Source{params: m.Parameters(), seed: seed} }

// Open opens a file or folder of safetensors, or a GGUF file, and checks that it holds exactly the model's parameters.
// Reading a tensor with a value that is not finite is an error.
func Open(path string, m model.Model) (*Source, error) {
	if gguf.IsFile(path) {
		return openGGUF(path, m)
	}
	t, err := pretrained.Open(path, m)
	if err != nil {
		return nil, err
	}
	r := t.Reader
	s := &Source{path: path, params: m.Parameters(), model: r, naming: namingOf(r, m), notes: t.Notes}
	s.biases = !slices.ContainsFunc(s.params, s.hasBias)
	want, err := s.tensors(path)
	if err == nil {
		err = checkTensors(path, r, want, m.Redundant)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return s, nil
}

// open opens the two files of a checkpoint.
func (s *Source) open(c *checkpoint.Checkpoint) (err error) {
	if s.model, err = c.Model(); err == nil {
		s.state, err = c.Optimizer()
	}
	return err
}

// FromCheckpoint opens a checkpoint's parameters and the state of its optimizer. It checks that they are the parameters
// of m and the state of o. A run with a delay may take a checkpoint of a run with another number of stale microbatches.
// The variable of train.nonfinite may be missing or superfluous, as it is zero in every checkpoint.
func FromCheckpoint(c *checkpoint.Checkpoint, m model.Model, o *optim.Optimizer, second Second) (s *Source, err error) {
	s = &Source{params: m.Parameters()}
	defer func() {
		if err != nil {
			s, err = nil, errors.Join(err, s.Close())
		}
	}()
	if err := s.open(c); err != nil {
		return s, err
	}
	want := map[string]graph.Type{}
	for _, v := range o.State() {
		if v.ID == optim.HaltedVariable {
			continue
		}
		want[v.ID] = v.Type
		s.names = append(s.names, v.ID)
	}
	s.second = secondIn(s.state, second, s.params)
	if _, ok := s.state.Lookup(optim.InitializedVariable); !ok && c.Step > 0 { // a checkpoint from before the variable existed
		s.begun = true
		delete(want, optim.InitializedVariable)
	}
	for _, p := range s.params {
		if second != OneVersion {
			want[s.second.Tensor(p.Name)] = p.Type
		}
	}
	inModel, err := s.tensors(c.Dir)
	if err != nil {
		return s, err
	}
	if err := checkTensors(c.Dir, s.model, inModel, noneRedundant); err != nil {
		return s, err
	}
	if err := checkTensors(c.Dir, s.state, want, func(tensor string) bool { return tensor == optim.HaltedVariable }); err != nil {
		return s, err
	}
	return s, s.checkState(c.Dir, o)
}

// FromReplicas opens the outer weights in a checkpoint of replicas that train on their own. StateTensor returns the
// rest.
func FromReplicas(c *checkpoint.Checkpoint, m model.Model) (s *Source, err error) {
	s = &Source{params: m.Parameters()}
	defer func() {
		if err != nil {
			s, err = nil, errors.Join(err, s.Close())
		}
	}()
	if err := s.open(c); err != nil {
		return s, err
	}
	want, err := s.tensors(c.Dir)
	if err != nil {
		return s, err
	}
	return s, checkTensors(c.Dir, s.model, want, noneRedundant)
}

// StateTensor returns the bytes of a tensor of a checkpoint's state, padded to whole words, or nil if there is none.
// One of another type is an error.
func (s *Source) StateTensor(name string, t graph.Type) ([]byte, error) {
	found, ok := s.state.Lookup(name)
	switch {
	case !ok:
		return nil, nil
	case found.DType != fileType(t.DType) || !graph.Shape(found.Shape).Equal(t.Shape):
		return nil, fmt.Errorf("tensor %q is %s %v, expected %v", name, found.DType, graph.Shape(found.Shape), t)
	}
	data, err := s.state.Bytes(name)
	return append(data, make([]byte, -len(data)&3)...), err // devices hold whole words
}

// checkState checks the types of the optimizer's variables, whose bytes go to the devices as they are.
func (s *Source) checkState(path string, o *optim.Optimizer) error {
	for _, v := range o.State() {
		if t, ok := s.state.Lookup(v.ID); ok && t.DType != fileType(v.Type.DType) {
			return fmt.Errorf("%s: tensor %q is %s, expected %s", path, v.ID, t.DType, fileType(v.Type.DType))
		}
	}
	return nil
}

// fileType is a dtype's name in files.
func fileType(d graph.DType) safetensors.DType { return safetensors.DType(strings.ToUpper(d.String())) }

// Second is the version of the weights that a checkpoint holds besides the weights that are evaluated.
type Second string

const (
	// OneVersion is no second version: there is no delay.
	OneVersion Second = ""
	// Pending has the update of the last batch, and the evaluated weights lack it: all microbatches are stale.
	Pending Second = "pending"
	// Previous lacks the update of the last batch, and the evaluated weights have it: only some microbatches are stale.
	Previous Second = "previous"
)

// SecondOf is the second version of the weights in a run with a delay of 0 or 1. partlyStale reports whether only some
// microbatches are stale.
func SecondOf(delay int, partlyStale bool) Second {
	switch {
	case delay == 0:
		return OneVersion
	case partlyStale:
		return Previous
	}
	return Pending
}

// Tensor is the name of a parameter's second version in a checkpoint.
func (s Second) Tensor(param string) string { return string(s) + "/" + param }

// Version is the second version on devices.
func (s Second) Version() engine.Version {
	if s == Pending {
		return engine.Newest
	}
	return engine.Older
}

// evaluated is the version that evaluations read.
func (s Second) evaluated() engine.Version {
	if s == Pending {
		return engine.Older
	}
	return engine.Newest
}

// secondIn is the second version that a checkpoint of a run with a delay holds: the wanted one, or the other.
func secondIn(r *safetensors.Reader, wanted Second, params []model.Parameter) Second {
	other := map[Second]Second{Pending: Previous, Previous: Pending}[wanted]
	if wanted != OneVersion && len(params) > 0 {
		if _, ok := r.Lookup(other.Tensor(params[0].Name)); ok {
			return other
		}
	}
	return wanted
}

// Settle makes the source return the weights y of a checkpoint of a delayed run: the newest weights without what the
// correction of optimizer o has added in advance.
func (s *Source) Settle(c *checkpoint.Checkpoint, o *optim.Optimizer, second Second) (err error) {
	if s.state, err = c.Optimizer(); err != nil {
		return err
	}
	second = secondIn(s.state, second, s.params)
	want, state := map[string]graph.Type{}, map[string]graph.Type{}
	for _, v := range o.State() {
		state[v.ID] = v.Type
	}
	for _, p := range s.params {
		if second == Pending {
			want[second.Tensor(p.Name)] = p.Type
		}
		if ahead := o.Ahead(p.Name); ahead != "" {
			want[ahead] = state[ahead]
		}
	}
	if err := checkPresent(c.Dir, s.state, want); err != nil {
		return err
	}
	s.settled = func(param string) (ahead []float32, err error) {
		from, name := s.model, param
		if second == Pending {
			from, name = s.state, second.Tensor(param)
		}
		newest, err := from.Float32(name)
		if err != nil {
			return nil, err
		}
		if name := o.Ahead(param); name != "" {
			if ahead, err = s.state.Float32(name); err != nil {
				return nil, err
			}
		}
		return optim.Settled(newest, ahead), nil
	}
	return nil
}

// Initial returns a parameter's values.
func (s *Source) Initial(p model.Parameter) (x []float32, err error) {
	switch {
	case s.model == nil && s.gguf == nil:
		return p.Initial(s.seed), nil
	case s.settled != nil:
		x, err = s.settled(p.Name)
	case s.inFile != nil:
		x, err = s.extended(p)
	default:
		x, err = s.read(p)
	}
	return x, usererror.New(err)
}

// Upload writes the parameters to a session's variables, one tensor at a time.
func (s *Source) Upload(to engine.Session) error {
	for _, p := range s.params {
		data, err := s.Initial(p)
		if err != nil {
			return err
		}
		if err := to.WriteAt(p.Name, nil, exec.F32Bytes(data)); err != nil {
			return err
		}
	}
	return nil
}

// Pipeline takes the variables of all its ranks; engine.Engine is one.
type Pipeline interface {
	WriteWeights(param string, v engine.Version, data []byte) error
	WriteState(name string, data []byte) error
}

// UploadPipeline writes all variables to a pipeline, one tensor at a time. Before the first step both versions of the
// weights are the initial ones.
func (s *Source) UploadPipeline(e Pipeline, second Second) error {
	if s.state != nil {
		second = s.second
	}
	for _, p := range s.params {
		data, err := s.Initial(p)
		if err != nil {
			return err
		}
		if err := e.WriteWeights(p.Name, second.evaluated(), exec.F32Bytes(data)); err != nil {
			return err
		}
		if second == OneVersion {
			continue
		}
		if s.state != nil {
			if data, err = s.state.Float32(second.Tensor(p.Name)); err != nil {
				return usererror.New(err)
			}
		}
		if err := e.WriteWeights(p.Name, second.Version(), exec.F32Bytes(data)); err != nil {
			return err
		}
	}
	for _, name := range s.names {
		data, err := s.stateOf(name)
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
func (s *Source) stateOf(name string) ([]byte, error) {
	if s.begun && name == optim.InitializedVariable {
		return []byte{1, 0, 0, 0}, nil
	}
	data, err := s.state.Bytes(name)
	return append(data, make([]byte, -len(data)&3)...), err // devices hold whole words
}

// Close closes the files. A nil Source has none.
func (s *Source) Close() error {
	if s == nil {
		return nil
	}
	var errs []error
	if s.gguf != nil {
		errs = append(errs, s.gguf.Close())
	}
	for _, r := range []*safetensors.Reader{s.model, s.state} {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	return errors.Join(errs...)
}

// namingOf returns the naming under which a file has the most tensors.
func namingOf(r *safetensors.Reader, m model.Model) (best model.Naming) {
	params, most := m.Parameters(), -1
	for _, n := range m.Namings() {
		if found := present(r, n, params); found > most {
			best, most = n, found
		}
	}
	return best
}

// present counts the tensors of a naming that a file has. It stops where more are missing than the file has tensors, so
// that a model of millions of tensors costs no more than the file.
func present(r *safetensors.Reader, n model.Naming, params []model.Parameter) (found int) {
	missing, all := 0, len(r.Tensors())
	for _, p := range params {
		for _, t := range n.Tensors(p) {
			if _, ok := r.Lookup(t.Name); ok {
				found++
			} else if missing++; missing > all {
				return found
			}
		}
	}
	return found
}

// tensors are the types of the tensors in the model's file. The error names the first that the file lacks.
func (s *Source) tensors(path string) (map[string]graph.Type, error) {
	m := map[string]graph.Type{}
	for _, p := range s.params {
		if s.omits(p) {
			continue
		}
		for _, t := range s.naming.Tensors(p) {
			want := graph.Type{DType: p.Type.DType, Shape: t.Shape}
			if _, ok := s.model.Lookup(t.Name); !ok {
				return nil, missingTensor(path, t.Name, want)
			}
			m[t.Name] = want
		}
	}
	return m, nil
}

func missingTensor(path, name string, want graph.Type) error {
	return fmt.Errorf("%s: tensor %q is missing, expected %v", path, name, want)
}

// hasBias reports whether a parameter is a balancing bias that the file has.
func (s *Source) hasBias(p model.Parameter) bool {
	return p.Role == model.BalancingBias && slices.ContainsFunc(s.naming.Tensors(p), func(t model.Tensor) bool {
		_, ok := s.model.Lookup(t.Name)
		return ok
	})
}

// omits reports whether a parameter is a balancing bias of a file without any.
func (s *Source) omits(p model.Parameter) bool { return s.biases && p.Role == model.BalancingBias }

// read gathers a parameter's values from the tensors of the model's file.
func (s *Source) read(p model.Parameter) ([]float32, error) {
	out := make([]float32, p.Type.Shape.Len())
	for _, t := range s.naming.Tensors(p) {
		if s.omits(p) {
			continue
		}
		x, err := s.float32(t.Name)
		if err != nil {
			return nil, err
		}
		if at := slices.IndexFunc(x, notFinite); at >= 0 && s.path != "" {
			return nil, fmt.Errorf("%s: tensor %q: element %d is %v, expected finite numbers", s.path, t.Name, at, x[at])
		}
		for _, piece := range t.Pieces {
			copy(out[piece.To:piece.To+piece.Len], x[piece.From:])
		}
	}
	return out, nil
}

// float32 reads a tensor of the model's file.
func (s *Source) float32(tensor string) ([]float32, error) {
	if s.gguf != nil {
		return s.gguf.Float32(tensor)
	}
	return s.model.Float32(tensor)
}

func notFinite(x float32) bool { return x-x != 0 }

// checkTensors checks that a file holds the wanted tensors, by name, shape and type, and no others but redundant and
// empty ones.
func checkTensors(path string, r *safetensors.Reader, want map[string]graph.Type, redundant func(tensor string) bool) error {
	if err := checkPresent(path, r, want); err != nil {
		return err
	}
	for _, t := range r.Tensors() {
		if _, ok := want[t.Name]; !ok && graph.Shape(t.Shape).Len() > 0 && !redundant(t.Name) {
			return fmt.Errorf("%s: tensor %q (%v) belongs to no parameter of this model", path, t.Name, graph.Shape(t.Shape))
		}
	}
	return nil
}

// checkPresent is checkTensors of a file that may hold other tensors.
func checkPresent(path string, r *safetensors.Reader, want map[string]graph.Type) error {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		t, ok := r.Lookup(name)
		if !ok {
			return missingTensor(path, name, want[name])
		}
		if !graph.Shape(t.Shape).Equal(want[name].Shape) {
			return fmt.Errorf("%s: tensor %q has shape %v, expected %v", path, name, graph.Shape(t.Shape), want[name].Shape)
		}
		floats := []safetensors.DType{safetensors.F64, safetensors.F32, safetensors.F16, safetensors.BF16}
		if want[name].DType != graph.F32 {
			floats = []safetensors.DType{fileType(want[name].DType)}
		}
		if !slices.Contains(floats, t.DType) {
			return fmt.Errorf("%s: tensor %q is %s, expected one of %s", path, name, t.DType, printable.List(floats))
		}
	}
	return nil
}

// noneRedundant is for checkTensors of files without redundant tensors.
func noneRedundant(string) bool { return false }
