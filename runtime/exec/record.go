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
	"github.com/gpupipe/gpupipe/runtime/tune"
	"github.com/gpupipe/gpupipe/shaders"
)

// recording is a program's commands on storage that is not yet bound to buffers.
type recording struct {
	shaders  []device.Shader
	commands []command
}

type command struct {
	kernel int // index of its kernel, or noKernel
	shader int // index of its shader, or device.Copy
	args   []plan.Storage
	groups [3]int
}

// record records a program's commands: its kernels, then the copies into outputs, then the copies into variables.
// Outputs of variables come first because they have the values from before the run.
func (p *Plan) record(q *program) (recording, error) {
	var r recording
	index := map[string]int{} // of shaders by source
	for n, g := range q.fused.Groups {
		k, err := p.placed(q, n)
		if err != nil {
			return r, err
		}
		first := len(r.commands)
		for _, pass := range k.Passes {
			r.dispatch(q, g, pass, index)
		}
		for _, part := range k.Parts {
			from, to := q.memory.Storage[part.From], q.memory.Storage[g.Stores[0]]
			to.Offset, to.Size = to.Offset+part.Offset, from.Size
			r.copy(from, to)
		}
		for i := range r.commands[first:] {
			r.commands[first+i].kernel = n
		}
	}
	for _, name := range slices.Sorted(maps.Keys(q.memory.Outputs)) {
		from := q.memory.Outputs[name]
		r.copy(from, plan.Storage{Space: outputSpace, Name: name, Size: from.Size})
	}
	for _, c := range q.memory.Copies {
		r.copy(c.From, c.To)
	}
	return r, nil
}

// placed returns the kernel of group n for the planned memory. It lowers the group again if other values share memory
// there than when the kernel was chosen.
func (p *Plan) placed(q *program, n int) (shaders.Kernel, error) {
	chosen := q.kernels[n]
	if sameSharing(chosen.memory, q.storage) {
		return chosen.Kernel, nil
	}
	ks := shaders.NewLowering(q.fused, p.dev.Limits()).Lower(q.fused.Groups[n], q.storage)
	i := slices.IndexFunc(ks, func(k shaders.Kernel) bool { return k.Name == chosen.Name })
	if i < 0 { // lowering offers variants by shape, not by memory
		return shaders.Kernel{}, fmt.Errorf("%s: kernel %s does not exist on the planned memory", shaders.Label(q.fused.Groups[n]),
			chosen.Name)
	}
	return ks[i], nil
}

// storage names the memory that was planned for a value.
func (q *program) storage(v *graph.Value) string {
	st := q.memory.Storage[v]
	return fmt.Sprintf("%d %s %d %d %d", st.Space, st.Name, st.Chunk, st.Offset, st.Size)
}

// sameSharing reports whether the same values share memory in two placements: the names of memory in one must map one
// to one to the names in the other.
func sameSharing(memory map[*graph.Value]string, planned func(*graph.Value) string) bool {
	to, from := map[string]string{}, map[string]string{}
	for v, a := range memory {
		b := planned(v)
		if other, ok := to[a]; ok && other != b {
			return false
		}
		if other, ok := from[b]; ok && other != a {
			return false
		}
		to[a], from[b] = b, a
	}
	return true
}

// outputSpace is the memory that the host reads. plan does not place it.
const outputSpace plan.Space = 255

// noKernel marks the copies at a program's end, into outputs and variables.
const noKernel = -1

func (r *recording) copy(from, to plan.Storage) {
	r.commands = append(r.commands, command{kernel: noKernel, shader: device.Copy, args: []plan.Storage{from, to}})
}

func (r *recording) dispatch(q *program, g *fuse.Group, pass shaders.Pass, index map[string]int) {
	i, ok := index[pass.Source]
	if !ok {
		i = len(r.shaders)
		index[pass.Source] = i
		r.shaders = append(r.shaders, tune.Shader(shaders.Label(g), pass))
	}
	c := command{shader: i, groups: pass.Groups}
	for _, a := range pass.Args {
		if a.Value != nil {
			c.args = append(c.args, q.memory.Storage[a.Value])
		} else {
			st := q.memory.Scratch[g][a.Scratch]
			offset, n := a.Within(st.Size)
			st.Offset, st.Size = st.Offset+offset, n
			c.args = append(c.args, st)
		}
	}
	r.commands = append(r.commands, c)
}

// assemble binds a recording to memory.
func (s *Session) assemble(l *loaded, at Binding) (*device.Program, error) {
	p := &device.Program{Label: l.name, Shaders: l.recorded.shaders}
	for _, c := range l.recorded.commands {
		d := device.Command{Shader: c.shader, Groups: c.groups}
		for _, st := range c.args {
			r, err := s.buffer(l, st, at)
			if err != nil {
				return nil, err
			}
			d.Args = append(d.Args, r)
		}
		p.Commands = append(p.Commands, d)
	}
	return p, nil
}

// classes returns the classes of a program's variables, in order.
func (p *Plan) classes(q *program) []string {
	found := map[string]bool{}
	for _, v := range q.graph.Variables() {
		if pool, ok := p.pools[v.ID]; ok {
			found[pool.Class] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// Encode returns numbers as little-endian elements of a dtype, padded to whole words.
func Encode(d graph.DType, data []float64) []byte {
	b := make([]byte, 0, 4*len(data))
	for _, x := range data {
		if d.Float16() {
			b = binary.LittleEndian.AppendUint16(b, uint16(d.Bits(x)))
		} else {
			b = binary.LittleEndian.AppendUint32(b, d.Bits(x))
		}
	}
	return append(b, make([]byte, -len(b)&3)...)
}

// Decode is the inverse of Encode. The padding of an odd number of 16-bit floats becomes a last element.
func Decode(d graph.DType, b []byte) []float64 {
	data := make([]float64, len(b)/d.Size())
	for i := range data {
		if d.Float16() {
			data[i] = d.FromBits(uint32(binary.LittleEndian.Uint16(b[2*i:])))
		} else {
			data[i] = d.FromBits(binary.LittleEndian.Uint32(b[4*i:]))
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

// IntBytes is the little-endian form of 32-bit integers.
func IntBytes[T int32 | uint32](x []T) []byte {
	b := make([]byte, 4*len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(v))
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
