package shaders

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/shaders/matmul"
	"github.com/gpupipe/gpupipe/shaders/native"
)

// threeOperands are the bindings of a pass that neither packs nor splits.
var threeOperands = []matmul.Binding{{Operand: matmul.A}, {Operand: matmul.B}, {Operand: matmul.C}}

// nativeProducts are the variants in C.
func (c *context) nativeProducts(spec matmul.Spec, e *epilogue, operands map[matmul.Operand]*graph.Value) []Kernel {
	var distinct string
	if spec.Text != nil {
		first, second, result := c.key(operands[matmul.A]), c.key(operands[matmul.B]), c.key(operands[matmul.C])
		distinct = fmt.Sprint(c.nativeEpilogue(e, operands, threeOperands), result == first, result == second)
		spec.Native = func(own []matmul.Binding) string { return c.nativeEpilogue(e, operands, own) }
	}
	var ks []Kernel
	for _, m := range c.variants(spec, distinct) {
		k := Kernel{Name: m.Name}
		if m.Scratch > 0 {
			k.Scratch = []int64{int64(m.Scratch)}
		}
		for _, p := range m.Passes {
			args := c.operandArgs(p.Bindings, operands)
			if p.Epilogue {
				_, extra, _ := c.epilogueArrays(e, operands, p.Bindings)
				args = append(args, extra...)
			}
			text, args := c.mergeArgs(p.Code, args)
			k.Passes = append(k.Passes, Pass{WGSL: text, Args: args, Workgroup: p.Workgroup, Groups: c.lim.Fold(p.Groups[0]), Inside: true})
		}
		ks = append(ks, k)
	}
	return ks
}

// nativeEpilogue is the epilogue in C. It names, for the kernel to fetch ahead, the arguments that have C's shape.
func (c *context) nativeEpilogue(e *epilogue, operands map[matmul.Operand]*graph.Value, own []matmul.Binding) string {
	var s strings.Builder
	arrays, extra, place := c.epilogueArrays(e, operands, own)
	s.WriteString(native.Function(e.function, arrays, place))
	s.WriteString("\n#define EPILOGUE_ARRAYS(FETCH)")
	for i, a := range extra {
		if v, result := a.Value, operands[matmul.C]; v != nil && v.DType == result.DType && v.Shape.Len() == result.Shape.Len() {
			fmt.Fprintf(&s, " FETCH(args[%d])", len(own)+i)
		}
	}
	return s.String()
}

// epilogueArrays are the arrays that the epilogue reads and stores, with the place of each among the arguments, and the
// arguments behind the pass's own. It reads the operands and the result through the pass's own bindings where these are
// the same memory.
func (c *context) epilogueArrays(e *epilogue, operands map[matmul.Operand]*graph.Value, own []matmul.Binding) (arrays []scalar.Array,
	extra []Arg, place []int) {
	arrays, extra = slices.Clone(e.w.bindings), slices.Clone(e.w.args)
	for i := range arrays {
		place = append(place, len(own)+i)
	}
	for _, o := range []struct {
		operand matmul.Operand
		read    string
	}{{matmul.A, readA}, {matmul.B, readB}, {matmul.C, readC}} {
		v, name := operands[o.operand], o.read+arraySuffix
		if !e.function.Uses(name) {
			continue
		}
		i := c.holding(own, operands, v)
		if i < 0 {
			i = len(own) + len(extra)
			extra = append(extra, Arg{Value: v})
		}
		a := array(v)
		a.Name = name
		arrays, place = append(arrays, a), append(place, i)
	}
	return arrays, extra, place
}

// mergeArgs makes one argument of those that hold the same memory. A text may name more: those of other kinds of product.
func (c *context) mergeArgs(text string, args []Arg) (string, []Arg) {
	kept, place := c.merge(args)
	if len(kept) == len(args) {
		return text, args
	}
	return renumberArgs(text, place), kept
}

// renumberArgs replaces args[i] by args[place[i]].
func renumberArgs(text string, place []int) string {
	const name = "args["
	var s strings.Builder
	for {
		before, after, found := strings.Cut(text, name)
		s.WriteString(before)
		if !found {
			return s.String()
		}
		s.WriteString(name)
		digits, _, _ := strings.Cut(after, "]")
		if i, err := strconv.Atoi(digits); err == nil && i < len(place) {
			s.WriteString(strconv.Itoa(place[i]))
			after = after[len(digits):]
		}
		text = after
	}
}
