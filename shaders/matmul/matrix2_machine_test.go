package matmul

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/gpupipe/gpupipe/shaders/spirv"
)

// machine interprets a module of matrix2 according to the specifications (SPIR-V 1.6, SPV_NV_tensor_addressing,
// SPV_NV_cooperative_matrix2), one workgroup at a time. CI has no device that supports the instructions. It panics at
// an unknown instruction.
type machine struct {
	code    []uint32
	values  map[uint32]any
	types   map[uint32][]uint32 // the operands after the result
	labels  map[uint32]int      // their positions in code
	binding map[uint32]int
	buffers [3][]byte
	half    Element
}

type (
	place  struct{ buffer, at int } // an element
	cell   struct{ value any }      // a variable of the function
	matrix struct {
		rows, cols int
		data       []float32
	}
	layout struct {
		clamped       bool
		dims, strides []int
		first, span   []int
		of            uint32
	}
	view struct{ order []int }
)

func newMachine(m *spirv.Module, half Element, a, b, c []byte) *machine {
	return &machine{code: m.Code, buffers: [3][]byte{a, b, c}, half: half}
}

// run interprets one workgroup.
func (m *machine) run(group [3]int) {
	m.values, m.types, m.labels, m.binding = map[uint32]any{}, map[uint32][]uint32{}, map[uint32]int{}, map[uint32]int{}
	for at := 5; at < len(m.code); at += int(m.code[at] >> 16) {
		if m.code[at]&0xffff == 248 {
			m.labels[m.code[at+1]] = at
		}
	}
	for at := 5; at < len(m.code); {
		n := int(m.code[at] >> 16)
		to, jumps := m.step(m.code[at]&0xffff, m.code[at+1:at+n], group)
		if at += n; jumps {
			if to == 0 {
				return
			}
			at = m.labels[to]
		}
	}
	panic("the code has no end")
}

func (m *machine) int(id uint32) int { return int(m.values[id].(uint32)) }

func (m *machine) ints(ids []uint32) (out []int) {
	for _, id := range ids {
		out = append(out, m.int(id))
	}
	return out
}

// step interprets an instruction. It returns the label to jump to, or 0 at the end.
func (m *machine) step(op uint32, a []uint32, group [3]int) (to uint32, jumps bool) {
	set := func(v any) { m.values[a[1]] = v }
	switch op {
	case 10, 14, 15, 16, 17, 72, 54, 246, 248: // declarations
	case 71: // OpDecorate
		if a[1] == 33 {
			m.binding[a[0]] = int(a[2])
		}
	case 19, 20, 21, 22, 23, 29, 30, 32, 33, 4456, 5370, 5371: // types
		m.types[a[0]] = a[1:]
	case 42: // OpConstantFalse
		set(false)
	case 43: // OpConstant
		set(a[2])
	case 44: // OpConstantComposite
		set(m.filled(a[0], math.Float32frombits(m.values[a[2]].(uint32))))
	case 1: // OpUndef
		set(m.filled(a[0], float32(math.NaN())))
	case 59: // OpVariable
		switch a[2] {
		case 1:
			set(&cell{group})
		case 7:
			set(&cell{})
		default:
			set(place{m.binding[a[1]], 0})
		}
	case 61: // OpLoad
		set(m.values[a[2]].(*cell).value)
	case 62: // OpStore
		m.values[a[0]].(*cell).value = m.values[a[1]]
	case 65: // OpAccessChain
		p := m.values[a[2]].(place)
		set(place{p.buffer, p.at + m.int(a[4])})
	case 81: // OpCompositeExtract
		set(uint32(m.values[a[2]].([3]int)[a[3]]))
	case 128:
		set(uint32(m.int(a[2]) + m.int(a[3])))
	case 132:
		set(uint32(m.int(a[2]) * m.int(a[3])))
	case 134:
		set(uint32(m.int(a[2]) / m.int(a[3])))
	case 137:
		set(uint32(m.int(a[2]) % m.int(a[3])))
	case 169: // OpSelect
		set(m.values[a[map[bool]int{true: 3, false: 4}[m.values[a[2]].(bool)]]])
	case 176:
		set(m.int(a[2]) < m.int(a[3]))
	case 249:
		return a[0], true
	case 250:
		if m.values[a[0]].(bool) {
			return a[1], true
		}
		return a[2], true
	case 253:
		return 0, true
	default:
		return 0, m.tensors(op, a, set)
	}
	return 0, false
}

// tensors interprets the instructions of the extensions.
func (m *machine) tensors(op uint32, a []uint32, set func(any)) bool {
	switch op {
	case 4459: // OpCooperativeMatrixMulAddKHR
		set(multiplied(m.values[a[2]].(matrix), m.values[a[3]].(matrix), m.values[a[4]].(matrix)))
	case 5372: // OpCreateTensorLayoutNV
		set(layout{clamped: m.int(m.types[a[0]][1]) == 1, of: a[0]})
	case 5373, 5374, 5375:
		l := m.values[a[2]].(layout)
		if l.of != a[0] {
			panic("a layout of another type")
		}
		switch x := m.ints(a[3:]); op {
		case 5373:
			l.dims, l.strides, l.first, l.span = x, []int{x[1], 1}, []int{0, 0}, x
		case 5374:
			l.strides = x
		default:
			l.first, l.span = []int{l.first[0] + x[0], l.first[1] + x[2]}, []int{x[1], x[3]}
		}
		set(l)
	case 5377: // OpCreateTensorViewNV
		set(view{m.ints(m.types[a[0]][2:])})
	case 5367: // OpCooperativeMatrixLoadTensorNV
		x := m.filled(a[0], 0)
		m.move(x, m.values[a[2]].(place), m.values[a[4]].(layout), a[6:], false)
		set(x)
	case 5368: // OpCooperativeMatrixStoreTensorNV
		m.move(m.values[a[1]].(matrix), m.values[a[0]].(place), m.values[a[2]].(layout), a[4:], true)
	default:
		panic(fmt.Sprint("unknown instruction ", op))
	}
	return false
}

// filled returns a matrix of a type with all elements equal.
func (m *machine) filled(typ uint32, v float32) matrix {
	t := m.types[typ]
	x := matrix{rows: m.int(t[2]), cols: m.int(t[3])}
	x.data = slices.Repeat([]float32{v}, x.rows*x.cols)
	return x
}

func multiplied(a, b, c matrix) matrix {
	if a.cols != b.rows || a.rows != c.rows || b.cols != c.cols {
		panic("matrices do not fit")
	}
	out := matrix{c.rows, c.cols, slices.Clone(c.data)}
	for i := range out.rows {
		row := out.data[i*out.cols:][:out.cols]
		for k := range a.cols {
			if f := a.data[i*a.cols+k]; f != 0 {
				for j, y := range b.data[k*b.cols:][:b.cols] {
					row[j] += f * y
				}
			}
		}
	}
	return out
}

// move loads or stores a matrix, whose rows and columns are the dimensions of the slice or of a view of it.
func (m *machine) move(x matrix, from place, l layout, tensor []uint32, store bool) {
	if size := map[bool]int{true: 4, false: 2}[store]; from.at*size%16 != 0 {
		panic("a tensor begins within sixteen bytes")
	}
	order := []int{0, 1}
	if tensor[0] == 1 {
		order = m.values[tensor[1]].(view).order
	}
	if x.rows != l.span[order[0]] || x.cols != l.span[order[1]] {
		panic("the slice is not of the matrix's size")
	}
	for r := range x.rows {
		for c := range x.cols {
			at := slices.Clone(l.first)
			at[order[0]] += r
			at[order[1]] += c
			inside := at[0] < l.dims[0] && at[1] < l.dims[1]
			if !inside && !l.clamped {
				panic("outside of what is not clamped")
			}
			if inside {
				m.element(from, at[0]*l.strides[0]+at[1]*l.strides[1], &x.data[r*x.cols+c], store)
			}
		}
	}
}

func (m *machine) element(p place, at int, v *float32, store bool) {
	b := m.buffers[p.buffer]
	switch at += p.at; {
	case store:
		binary.LittleEndian.PutUint32(b[4*at:], math.Float32bits(*v))
	default:
		*v = float32(m.half.FromBits(uint32(binary.LittleEndian.Uint16(b[2*at:]))))
	}
}
