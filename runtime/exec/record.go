package exec

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/plan"
	"github.com/gpupipe/gpupipe/runtime/device"
	"github.com/gpupipe/gpupipe/shaders"
)

// record writes a program's commands: its kernels, then the copies into outputs, which see variables
// as they were, and into variables.
func (s *Session) record(l *loaded) (*device.Program, error) {
	p := &device.Program{Label: l.name}
	index := map[string]int{} // of shaders by source
	key := func(v *graph.Value) string {
		st := l.memory.Storage[v]
		return fmt.Sprintf("%d %s %d %d %d", st.Space, st.Name, st.Chunk, st.Offset, st.Size)
	}
	for _, g := range l.fused.Groups {
		ks, err := shaders.Lower(l.fused, g, s.plan.limits(), key)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(ks, func(k shaders.Kernel) bool { return k.Name == l.choice[g] })
		for _, pass := range ks[i].Passes {
			s.dispatch(p, l, g, pass, index)
		}
		for _, part := range ks[i].Parts {
			to := s.buffer(l, l.memory.Storage[g.Stores[0]])
			from := s.buffer(l, l.memory.Storage[part.From])
			p.Commands = append(p.Commands, copyCommand(from, device.Range{Buffer: to.Buffer, Offset: to.Offset + part.Offset, Size: from.Size}))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.memory.Outputs)) {
		to := l.outputs[name]
		p.Commands = append(p.Commands, copyCommand(s.buffer(l, l.memory.Outputs[name]), device.Range{Buffer: to, Size: to.Size()}))
	}
	for _, c := range l.memory.Copies {
		p.Commands = append(p.Commands, copyCommand(s.buffer(l, c.From), s.buffer(l, c.To)))
	}
	return p, nil
}

func copyCommand(from, to device.Range) device.Command {
	return device.Command{Shader: device.Copy, Args: []device.Range{from, to}}
}

func (s *Session) dispatch(p *device.Program, l *loaded, g *fuse.Group, pass shaders.Pass, index map[string]int) {
	i, ok := index[pass.WGSL]
	if !ok {
		i = len(p.Shaders)
		index[pass.WGSL] = i
		p.Shaders = append(p.Shaders, device.Shader{Label: shaders.Label(g), WGSL: pass.WGSL,
			Bindings: make([]device.Access, len(pass.Args)), Workgroup: pass.Workgroup, WorkgroupMemory: pass.WorkgroupMemory})
	}
	c := device.Command{Shader: i, Groups: pass.Groups}
	for _, a := range pass.Args {
		var st plan.Storage
		if a.Value != nil {
			st = l.memory.Storage[a.Value]
		} else {
			st = l.memory.Scratch[g][a.Scratch]
		}
		c.Args = append(c.Args, s.buffer(l, st))
	}
	p.Commands = append(p.Commands, c)
}

// Encode gives the little-endian bytes of numbers as elements of a dtype, padded to whole words.
func Encode(d graph.DType, data []float64) []byte {
	b := make([]byte, 0, 4*len(data))
	for _, x := range data {
		switch d {
		case graph.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		case graph.I32:
			b = binary.LittleEndian.AppendUint32(b, uint32(int32(x)))
		case graph.U32:
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
		default:
			panic("exec: no encoding for " + d.String())
		}
	}
	return b
}

// Decode is the inverse of Encode.
func Decode(d graph.DType, b []byte) []float64 {
	data := make([]float64, len(b)/4)
	for i := range data {
		w := binary.LittleEndian.Uint32(b[4*i:])
		switch d {
		case graph.F32:
			data[i] = float64(math.Float32frombits(w))
		case graph.I32:
			data[i] = float64(int32(w))
		default:
			data[i] = float64(w)
		}
	}
	return data
}

// F32Bytes is the little-endian form of float32 elements.
func F32Bytes(x []float32) []byte {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
	return b
}

// ToF32 is the inverse of F32Bytes.
func ToF32(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}
