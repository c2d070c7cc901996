package weights

import (
	"errors"
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/gguf"
)

// openGGUF opens a GGUF file and checks that it holds exactly the model's parameters.
func openGGUF(path string, m model.Model) (*Source, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	s := &Source{path: path, params: m.Parameters(), gguf: f}
	if _, s.naming, err = model.FromGGUF(f); err == nil {
		err = s.checkGGUF()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return s, nil
}

func (s *Source) checkGGUF() error {
	known := map[string]bool{model.RopeFactorsTensor: true}
	for _, p := range s.params {
		for _, want := range s.naming.Tensors(p) {
			t, ok := s.gguf.Lookup(want.Name)
			if !ok {
				return fmt.Errorf("tensor %q is missing, expected %v", want.Name, want.Shape)
			}
			if !graph.Shape(t.Shape).Equal(want.Shape) {
				return fmt.Errorf("tensor %q has shape %v, expected %v", want.Name, graph.Shape(t.Shape), want.Shape)
			}
			if _, err := t.Bytes(); err != nil {
				return err
			}
			known[want.Name] = true
		}
	}
	for _, t := range s.gguf.Tensors() {
		if !known[t.Name] {
			return fmt.Errorf("tensor %q (%v) belongs to no parameter of this model", t.Name, graph.Shape(t.Shape))
		}
	}
	return nil
}
