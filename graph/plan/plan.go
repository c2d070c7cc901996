// Package plan decides where every value of a fused graph lies in memory.
//
// Variables, inputs and constants have buffers of their own. All other values, and the scratch memory of kernels, lie
// in an arena. [Run] finds the lifetime of each value, from the kernel that stores it to the last one that reads it,
// lets results overwrite operands whose lifetime ends there, and packs the rest, the largest value first, so that
// values of disjoint lifetimes share memory.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/target"
)

// Space is a kind of memory.
type Space uint8

const (
	Arena    Space = iota // shared by everything within a run
	Variable              // one buffer a variable
	Input                 // one buffer an input
	Constant              // one buffer a constant
)

// Storage is where a value lies. Name is the variable's, input's or constant's; Chunk is the arena's buffer.
type Storage struct {
	Space  Space
	Name   string
	Chunk  int
	Offset int64 // bytes
	Size   int64 // bytes
}

// Copy moves a value when the kernels are done.
type Copy struct{ From, To Storage }

// Plan is the memory of one program.
type Plan struct {
	Storage map[*graph.Value]Storage // of every value that a kernel loads or stores, aliases included
	Scratch map[*fuse.Group][]Storage
	Chunks  []int64 // bytes of each arena buffer
	Copies  []Copy  // assignments that no kernel stored in place, in order
	Outputs map[string]Storage
}

// block is a range of the arena: the values that share it, and when it is in use.
type block struct {
	size       int64
	start, end int // kernel positions, inclusive
	chunk      int
	offset     int64
	label      string
}

type planner struct {
	r      *fuse.Result
	lim    target.Limits
	blocks map[*graph.Value]*block
	all    []*block
	last   map[*graph.Value]int // last kernel that reads a stored value
}

// Run places the values of a fused graph; scratch gives the bytes of each scratch array of a group's kernel.
func Run(r *fuse.Result, scratch func(*fuse.Group) []int64, lim target.Limits) (*Plan, error) {
	p := &planner{r: r, lim: lim, blocks: map[*graph.Value]*block{}, last: map[*graph.Value]int{}}
	p.lifetimes()
	tmp := map[*fuse.Group][]*block{}
	for i, g := range r.Groups {
		for _, v := range g.Stores {
			if r.Direct[v] == nil {
				p.place(i, g, v)
			}
		}
		for j, size := range scratch(g) {
			b := &block{size: size, start: i, end: i, label: fmt.Sprintf("scratch %d of %s", j, g.Nodes[0].Op.Name())}
			tmp[g] = append(tmp[g], b)
			p.all = append(p.all, b)
		}
	}
	moves := p.moves()
	out := &Plan{Storage: map[*graph.Value]Storage{}, Scratch: map[*fuse.Group][]Storage{}, Outputs: map[string]Storage{}}
	var err error
	if out.Chunks, err = p.pack(); err != nil {
		return nil, err
	}
	for g, bs := range tmp {
		for _, b := range bs {
			out.Scratch[g] = append(out.Scratch[g], Storage{Space: Arena, Chunk: b.chunk, Offset: b.offset, Size: b.size})
		}
	}
	if err := p.resolve(out); err != nil {
		return nil, err
	}
	for _, m := range moves {
		out.Copies = append(out.Copies, m(out)...)
	}
	for _, o := range r.Graph.Outputs {
		out.Outputs[o.Name] = out.Storage[o.Value]
	}
	return out, nil
}

func (p *planner) lifetimes() {
	for i, g := range p.r.Groups {
		for _, v := range g.Loads {
			p.last[v] = i
		}
	}
	end := len(p.r.Groups)
	for _, o := range p.r.Graph.Outputs {
		p.last[p.r.Alias.Base(o.Value)] = end
	}
	for _, a := range p.r.Graph.Assigns {
		if p.r.Direct[a.Value] != a.Variable {
			p.last[p.r.Alias.Base(a.Value)] = end
		}
	}
}

// place gives v a block: the block of an input that dies here and that v may overwrite, or else a new one.
func (p *planner) place(i int, g *fuse.Group, v *graph.Value) {
	end := max(p.last[v], i)
	for _, in := range g.InPlace[v] {
		b := p.blocks[in]
		if b != nil && b.end == i && b.size == v.Type.Bytes() {
			b.end = end
			p.blocks[v] = b
			return
		}
	}
	b := &block{size: v.Type.Bytes(), start: i, end: end, label: v.String()}
	p.blocks[v] = b
	p.all = append(p.all, b)
}

// moves prepares the copies into variables. Values read from variables are copied to the arena first, so that variables
// can exchange contents.
func (p *planner) moves() []func(*Plan) []Copy {
	var first, second []func(*Plan) []Copy
	end := len(p.r.Groups)
	for _, a := range p.r.Graph.Assigns {
		if p.r.Direct[a.Value] == a.Variable {
			continue
		}
		to := variable(a.Variable)
		if base := p.r.Alias.Base(a.Value); p.blocks[base] != nil || p.r.Direct[base] != nil { // that one is not copied to
			second = append(second, func(out *Plan) []Copy { return []Copy{{out.Storage[a.Value], to}} })
			continue
		}
		b := &block{size: to.Size, start: end, end: end, label: a.Variable.String()}
		p.all = append(p.all, b)
		tmp := func() Storage { return Storage{Space: Arena, Chunk: b.chunk, Offset: b.offset, Size: b.size} }
		first = append(first, func(out *Plan) []Copy { return []Copy{{out.Storage[a.Value], tmp()}} })
		second = append(second, func(*Plan) []Copy { return []Copy{{tmp(), to}} })
	}
	return slices.Concat(first, second)
}

func name(v *graph.Value) string { return v.Node.Op.(graph.Source).Label() }

// variable is the storage of a variable or a section of one.
func variable(v *graph.Value) Storage {
	whole, offset := graph.Whole(v.Node.Op.(graph.Source))
	return Storage{Space: Variable, Name: whole.ID, Offset: int64(offset * v.DType.Size()), Size: v.Type.Bytes()}
}

// pack assigns offsets, the largest block first, each at the lowest place free during its lifetime.
func (p *planner) pack() ([]int64, error) {
	order := slices.Clone(p.all)
	slices.SortStableFunc(order, func(a, b *block) int {
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.start, b.start))
	})
	capacity := p.lim.MaxBufferSize / p.lim.OffsetAlignment * p.lim.OffsetAlignment
	var chunks []int64
	var placed [][]*block // by chunk, by offset
	for _, b := range order {
		if b.size > capacity || b.size > p.lim.MaxBindingSize {
			return nil, &TooLarge{b.label, b.size, min(capacity, p.lim.MaxBindingSize)}
		}
		for c := 0; ; c++ {
			if c == len(chunks) {
				chunks, placed = append(chunks, 0), append(placed, nil)
			}
			off := p.gap(placed[c], b)
			if off+b.size > capacity {
				continue
			}
			b.chunk, b.offset = c, off
			chunks[c] = max(chunks[c], p.align(off+b.size))
			i, _ := slices.BinarySearchFunc(placed[c], off, func(x *block, o int64) int { return cmp.Compare(x.offset, o) })
			placed[c] = slices.Insert(placed[c], i, b)
			break
		}
	}
	return chunks, nil
}

// gap is the lowest aligned offset at which b fits between the blocks that are in use while it is.
func (p *planner) gap(placed []*block, b *block) int64 {
	off := int64(0)
	for _, x := range placed {
		if x.end < b.start || b.end < x.start {
			continue
		}
		if off+b.size <= x.offset {
			break
		}
		off = max(off, p.align(x.offset+x.size))
	}
	return off
}

func (p *planner) align(n int64) int64 {
	a := p.lim.OffsetAlignment
	return (n + a - 1) / a * a
}

// ErrTooLarge is wrapped by Run's error when an array is larger than the device can bind.
var ErrTooLarge = errors.New("does not fit the device")

// TooLarge is that error.
type TooLarge struct {
	Array         string
	Needed, Limit int64 // bytes
}

func (e *TooLarge) Error() string {
	return fmt.Sprintf("%v: %s needs %d bytes in one piece, the device binds at most %d", ErrTooLarge, e.Array, e.Needed, e.Limit)
}

func (e *TooLarge) Unwrap() error { return ErrTooLarge }

// resolve records the storage of every value that kernels touch.
func (p *planner) resolve(out *Plan) error {
	set := func(v *graph.Value) error {
		b := p.r.Alias.Base(v)
		s, err := p.baseStorage(b)
		if err != nil {
			return err
		}
		s.Offset += int64(p.r.Alias[v].Offset * v.DType.Size())
		s.Size = v.Type.Bytes()
		out.Storage[v] = s
		return nil
	}
	for _, g := range p.r.Groups {
		vs := slices.Concat(g.Loads, g.Stores)
		for _, n := range g.Nodes {
			for _, in := range n.Inputs {
				if p.r.Alias[in].Base != nil {
					vs = append(vs, in)
				}
			}
		}
		for _, v := range vs {
			if err := set(v); err != nil {
				return err
			}
		}
	}
	for _, o := range p.r.Graph.Outputs {
		if err := set(o.Value); err != nil {
			return err
		}
	}
	for _, a := range p.r.Graph.Assigns {
		if err := set(a.Value); err != nil {
			return err
		}
	}
	return nil
}

func (p *planner) baseStorage(v *graph.Value) (Storage, error) {
	size := v.Type.Bytes()
	if u := p.r.Direct[v]; u != nil {
		return variable(u), nil
	}
	if b := p.blocks[v]; b != nil {
		return Storage{Space: Arena, Chunk: b.chunk, Offset: b.offset, Size: size}, nil
	}
	s := Storage{Name: "", Size: size}
	switch v.Node.Op.(type) {
	case *graph.Variable, *graph.Section:
		s = variable(v)
	case *graph.Input:
		s.Space, s.Name = Input, name(v)
	case *graph.Constant:
		s.Space, s.Name = Constant, name(v)
	default:
		panic("plan: nothing stores " + v.String())
	}
	switch {
	case size > p.lim.MaxBindingSize:
		return Storage{}, &TooLarge{v.String(), size, p.lim.MaxBindingSize}
	case s.Offset%p.lim.OffsetAlignment != 0:
		return Storage{}, fmt.Errorf("%v begins at byte %d of its variable, the device binds at multiples of %d", v, s.Offset,
			p.lim.OffsetAlignment)
	}
	return s, nil
}
