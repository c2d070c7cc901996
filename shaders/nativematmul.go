package shaders

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/shaders/matmul"
	"github.com/gpupipe/gpupipe/shaders/native"
)

// threeOperands are the bindings of a pass that neither packs nor splits.
var threeOperands = []matmul.Binding{{Operand: matmul.A}, {Operand: matmul.B}, {Operand: matmul.C}}

// nativeProducts are the variants in C, with the epilogue translated.
func (c *context) nativeProducts(spec matmul.Spec, e *epilogue, operands map[matmul.Operand]*graph.Value) ([]Kernel, error) {
	var failed error
	var distinct string
	if spec.Epilogue != nil {
		wgsl, extra := c.epilogueModule(e, operands, threeOperands)
		first, second, result := c.key(operands[matmul.A]), c.key(operands[matmul.B]), c.key(operands[matmul.C])
		distinct = fmt.Sprint(wgsl, epilogueArrays(extra, len(threeOperands), operands[matmul.C]), result == first, result == second)
		translated := map[string]string{} // most variants have the same epilogue
		spec.EpilogueC = func(own []matmul.Binding) string {
			wgsl, extra := c.epilogueModule(e, operands, own)
			text, ok := translated[wgsl]
			if !ok {
				var err error
				if text, err = native.Functions(wgsl, native.Options{Inside: true}); err != nil {
					failed = fmt.Errorf("%s: %w", Label(c.g), err)
				}
				translated[wgsl] = text
			}
			return text + epilogueArrays(extra, len(own), operands[matmul.C])
		}
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
				_, extra := c.epilogueModule(e, operands, p.Bindings)
				args = append(args, extra...)
			}
			text, args := c.mergeArgs(p.WGSL, args)
			k.Passes = append(k.Passes, Pass{WGSL: text, Args: args, Workgroup: p.Workgroup, Groups: c.lim.Fold(p.Groups[0]), Inside: true})
		}
		ks = append(ks, k)
	}
	return ks, failed
}

// epilogueArrays names, for the kernel to fetch ahead, the arguments from the first on that have C's shape.
func epilogueArrays(args []Arg, first int, result *graph.Value) string {
	var s strings.Builder
	s.WriteString("\n#define EPILOGUE_ARRAYS(FETCH)")
	for i, a := range args {
		if v := a.Value; v != nil && v.DType == result.DType && v.Shape.Len() == result.Shape.Len() {
			fmt.Fprintf(&s, " FETCH(args[%d])", first+i)
		}
	}
	return s.String()
}

// epilogueModule is the epilogue as a WGSL function, and the arrays that it binds behind the pass's own. It reads the
// operands and the result through the pass's own bindings where these are the same memory.
func (c *context) epilogueModule(e *epilogue, operands map[matmul.Operand]*graph.Value, own []matmul.Binding) (wgsl string, extra []Arg) {
	var s strings.Builder
	declare := func(binding int, name, typ string) {
		fmt.Fprintf(&s, "@group(0) @binding(%d) var<storage, read_write> %s: array<%s>;\n", binding, name, typ)
	}
	for i, t := range e.w.types {
		declare(len(own)+i, fmt.Sprintf("b%d", i), t)
	}
	extra = slices.Clone(e.w.args)
	body := e.stmts + "  return " + e.expr + ";\n"
	declared := map[int]string{}
	for _, o := range []struct {
		operand matmul.Operand
		read    string
	}{{matmul.A, readA}, {matmul.B, readB}, {matmul.C, readC}} {
		array := o.read + arraySuffix
		if !strings.Contains(body, array+"[") {
			continue
		}
		v := operands[o.operand]
		i := slices.IndexFunc(own, func(b matmul.Binding) bool {
			return b.Operand != matmul.Scratch && c.key(operands[b.Operand]) == c.key(v)
		})
		if i < 0 {
			i = len(own) + len(extra)
			extra = append(extra, Arg{Value: v})
		}
		if declared[i] != "" {
			body = rename(body, array, declared[i])
			continue
		}
		declared[i] = array
		declare(i, array, fuse.WGSLType(v.DType))
	}
	result := fuse.WGSLType(operands[matmul.C].DType)
	return s.String() + "fn epilogue(acc: f32, b: u32, i: u32, j: u32) -> " + result + " {\n" + body + "}\n", extra
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
