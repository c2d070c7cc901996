package graph

import (
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/graph/target"
)

// Kernel says how a device computes an op; it is one of the types below.
type Kernel interface{ kernel() }

// Memory is a source: nothing is computed.
type Memory struct{}

// Elementwise computes each element of its one result on its own, and fuses freely with its neighbors.
type Elementwise struct {
	// Emit returns the element at the coordinates, of the result's DType.Scalar.
	Emit func(e Emitter, at []Index) *scalar.Expr
	// View marks ops that only move elements: they are never worth storing for a second reader.
	View bool
}

// Emitter writes the body of a kernel.
type Emitter interface {
	// Input returns input i's element at the coordinates, one per dimension of that input. They lie inside the input
	// even if the kernel discards the value: a GPU may fault on any other.
	Input(i int, at []Index) *scalar.Expr
	// Let computes an expression once, for several uses, and returns the variable that holds it.
	Let(x *scalar.Expr) *scalar.Expr
}

// Pointwise is the Elementwise whose inputs all have the shape of the result.
func Pointwise(inputs int, f func(e Emitter, args []*scalar.Expr) *scalar.Expr) Elementwise {
	return Elementwise{Emit: func(e Emitter, at []Index) *scalar.Expr {
		args := make([]*scalar.Expr, inputs)
		for i := range args {
			args[i] = e.Input(i, at)
		}
		return f(e, args)
	}}
}

// Reduction folds its one input over some axes, which leave the shape.
type Reduction struct {
	Axes []int // ascending, distinct
	Fold Fold
}

// Fold is the operator of a reduction.
type Fold uint8

const (
	Sum Fold = iota
	Max
	Min
)

// Contraction is a batched matrix product of inputs 0 and 1, [..., m, k] × [..., k, n] before transposition. If it is
// grouped, input 2 holds the offsets of the groups.
type Contraction struct {
	TransA, TransB bool
	Symmetric      bool // the result equals its transpose, except for rounding: a device may compute half of it
	Groups         Grouping
}

// Grouping says what the groups of a matrix product are. Their offsets are u32 [groups+1] and ascend from zero.
type Grouping uint8

const (
	Ungrouped   Grouping = iota
	GroupedRows          // rows of the first operand and of the result, [m, k]: each group has a matrix of the second
	GroupedSums          // ranges of k, [k, m] × [k, n]: each group makes a matrix of the result, [groups, m, n]
)

// Join lays its inputs one after the other in memory.
type Join struct{}

// Expansion rewrites the op as others before kernels are made: Expand returns the results' values.
type Expansion struct {
	Expand func(in []*Value) []*Value
}

// Template is hand-written WGSL.
type Template struct {
	// Variants returns the ways to compute the op within the limits, the naive one first, at least one.
	Variants func(target.Limits) []Variant
	// Flops is the number of multiplications and additions of the op, for profiles; 0: not counted.
	Flops float64
	// Update is set for an op that replaces a part of a variable.
	Update *Update
}

// Update marks an op whose result 0 has most elements of input 0. Its passes store only the others, in the memory of
// input 0, which they do not use. That takes a variable as input 0 which the result is assigned to, and which nothing
// else reads. Everywhere else [Expand] replaces the op.
type Update struct {
	Stored int                            // elements that the passes store
	Expand func(in []*Value) (y []*Value) // computes the whole results
}

// Variant is one way to compute an op: a list of dispatches with scratch memory between them.
type Variant struct {
	Name    string
	Scratch []Type // tmp0, tmp1, …: live from the first pass to the last
	Passes  []Pass
	// Tolerance is the error to expect, relative to the largest magnitude of a result, where it is larger than f32's:
	// the variant rounds intermediate values to 16-bit floats.
	Tolerance float64
}

// Pass is one dispatch of a template. The storage arrays in0…, out0…, tmp0… that it names in Uses are declared for it
// with their element types, and so is the entry point. Its text calls them $in0…, since two inputs may be one. An array
// of 16-bit floats is declared as array<u32>, two a word, or array<vec2<u32>> where it is among Vec4. Body runs with
//
//	group: u32  the flat index of the workgroup, < Groups (folded over the dispatch dimensions for it)
//	lane: u32   the index of the invocation in its workgroup, < Workgroup
type Pass struct {
	Declarations    string // module scope: workgroup arrays, constants, functions
	Body            string
	Uses            []string // "in0", "out0", "tmp0": the arrays that the pass touches
	Vec4            []string // the arrays of Uses that are declared as array<vec4<T>>; their lengths must divide by 4
	Workgroup       int
	Groups          int
	WorkgroupMemory int // bytes
	// Inside reports that no index leaves its array, whatever the data: devices need not check bounds.
	Inside bool
	// Cooperative is the matrices that a pass multiplies by subgroups (WGSL's wgpu_cooperative_matrix); nil: none. The
	// factors, f32 in the text, are of 16-bit floats that lie two a word.
	Cooperative *target.CooperativeMatrix
	// Native passes are C, with the functions of shaders/native's prelude: Declarations at file scope, and in Body the
	// statements of the workgroup with the index group. The arrays are restricted pointers to f32, u32 or i32, or to
	// u16 for 16-bit floats. Workgroup is 1.
	Native bool
}

func (Memory) kernel()      {}
func (Elementwise) kernel() {}
func (Reduction) kernel()   {}
func (Contraction) kernel() {}
func (Join) kernel()        {}
func (Expansion) kernel()   {}
func (Template) kernel()    {}
