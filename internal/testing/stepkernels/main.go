//go:build linux

// Command stepkernels writes the kernels of a training step for the first GPU of Vulkan, as SPIR-V, with what they have
// to do. .ci/gpu-kernels.sh makes tables of them. Nothing runs, so the GPU's kernel driver may be feigned.
//
//	stepkernels FOLDER
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
)

// The step: smollm2-135m with AdamW, a batch of so many sequences of so many tokens in one microbatch.
const preset, sequences, tokens = "smollm2-135m", 4, 512

// kernel is a kernel of the step, as kernels.json has it.
type kernel struct {
	Precision string   `json:"precision"`
	Label     string   `json:"label"`
	Shapes    []string `json:"shapes"` // of the first two arrays
	Candidate string   `json:"candidate"`
	Count     int      `json:"count"` // in the step
	Flops     float64  `json:"flops"` // of one
	Bytes     int64    `json:"bytes"`
	Passes    []string `json:"passes"` // files of SPIR-V; those that bounds are checked in end in .checked.spv
	Subgroup  int      `json:"subgroup"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: stepkernels FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "stepkernels:", err)
		os.Exit(1)
	}
}

func run(dir string) (err error) {
	s := &step{dir: dir, files: map[string]string{}, kernels: map[string]*kernel{}}
	d, err := vulkan.Open(0, vulkan.Options{Dump: s.dump})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	s.Device = d
	for _, precision := range []graph.DType{graph.F32, graph.F16, graph.BF16} {
		if err := s.add(precision); err != nil {
			return fmt.Errorf("%v: %w", precision, err)
		}
	}
	out, err := json.MarshalIndent(slices.Collect(maps.Values(s.kernels)), "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "kernels.json"), out, 0o600)
}

// step collects the kernels of steps in several precisions.
type step struct {
	device.Device
	dir     string
	files   map[string]string  // by source
	kernels map[string]*kernel // by precision and files
}

// dump writes the SPIR-V of a shader.
func (s *step) dump(k device.Kernel) error {
	if k.Format != device.FormatSPIRV {
		return nil
	}
	name := fmt.Sprintf("%d.spv", len(s.files))
	if !k.Shader.Inside {
		name = fmt.Sprintf("%d.checked.spv", len(s.files))
	}
	s.files[k.Shader.Source] = name
	return os.WriteFile(filepath.Join(s.dir, name), k.Code, 0o600)
}

// add adds the step in a precision.
func (s *step) add(precision graph.DType) error {
	graphs, err := programs(precision)
	if err != nil {
		return err
	}
	p, err := exec.NewPlan(s, graphs, exec.Options{})
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(graphs)) {
		chosen, err := p.Chosen(name)
		if err != nil {
			return err
		}
		for i, info := range p.Kernels(name) {
			k := &kernel{Precision: precision.String(), Label: info.Label, Candidate: info.Candidate, Flops: info.Flops, Bytes: info.Bytes,
				Subgroup: s.Limits().SubgroupSize}
			if len(chosen[i].Passes) == 0 { // a copy
				continue
			}
			for _, a := range chosen[i].Passes[0].Args {
				if a.Value != nil && len(k.Shapes) < 2 {
					k.Shapes = append(k.Shapes, a.Value.Shape.String())
				}
			}
			for _, pass := range chosen[i].Passes {
				shader := tune.Shader(k.Label, pass)
				loaded, err := s.Load(&device.Program{Label: name, Shaders: []device.Shader{shader}})
				if err != nil {
					return err
				}
				loaded.Release()
				k.Passes = append(k.Passes, s.files[pass.Source])
			}
			key := fmt.Sprint(k.Precision, k.Passes)
			if s.kernels[key] == nil {
				s.kernels[key] = k
			}
			s.kernels[key].Count++
		}
	}
	return nil
}

// programs are those that a step runs, each once.
func programs(precision graph.DType) (map[string]*graph.Graph, error) {
	m, err := model.Preset(preset)
	if err != nil {
		return nil, err
	}
	m.SeqLen = tokens
	in := model.InPrecision(m, precision)
	s, err := in.Stage(model.StageOptions{Last: in.Units(), Batch: sequences, Microbatches: 1})
	if err != nil {
		return nil, err
	}
	var params []optim.Param
	for _, p := range m.Parameters() {
		gradients := m.Gradients(p.Name)
		last := len(gradients) - 1
		params = append(params, optim.Param{Name: p.Name, Type: p.Type, Layer: p.Unit, Gradient: gradients[last],
			Contributions: gradients[:last], Decay: len(p.Type.Shape) == 2})
	}
	o, err := optim.New(optim.Config{Algorithm: optim.DefaultAdamW(), AdamW: *optim.DefaultRest(), Clip: 1,
		Schedule: optim.Schedule{Name: "constant"}}, params)
	if err != nil {
		return nil, err
	}
	norms, err := o.All().NormSquares()
	if err != nil {
		return nil, err
	}
	update, err := o.All().Update(0)
	return map[string]*graph.Graph{"forward": s.Forward, "backward": s.Backward, "norms": norms, "update": update}, err
}
