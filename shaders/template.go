package shaders

import (
	"fmt"
	"os"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/scalar"
	"github.com/gpupipe/gpupipe/graph/target"
)

// templateKernels declares the arrays that hand-written passes use.
func (l *groupLowering) templateKernels() []Kernel {
	n := l.g.Nodes[0]
	t := n.Op.Kernel(n).(graph.Template)
	var ks []Kernel
	for _, variant := range t.Variants(l.lim) {
		k := Kernel{Name: variant.Name, Tolerance: variant.Tolerance}
		for _, s := range variant.Scratch {
			k.Scratch = append(k.Scratch, s.Bytes())
		}
		for _, p := range variant.Passes {
			k.Passes = append(k.Passes, l.templatePass(n, variant, p))
		}
		ks = append(ks, k)
	}
	return ks
}

// templatePass is a pass with the declarations of its arrays.
func (l *groupLowering) templatePass(n *graph.Node, variant graph.Variant, p graph.Pass) Pass {
	grid := l.lim.Fold(p.Groups)
	if p.Native {
		head, body, args := l.bindArrays(n, variant, p, p.Body, func(t graph.DType, _ string) string { return nativeType(t) },
			"  %[3]s *restrict const %[2]s = args[%[1]d].at;\n")
		source := target.C + "\n" + p.Declarations + "KERNEL {\n" + head + "  for (u32 group = first; group < last; group++) {\n" + body +
			"  }\n}\n"
		return Pass{Source: source, Args: args, Workgroup: [3]int{1, 1, 1}, Groups: grid, Inside: true}
	}
	directives := ""
	if p.Cooperative != nil {
		directives = p.Cooperative.Directives()
	}
	head, text, args := l.bindArrays(n, variant, p, p.Declarations+scalar.Main(p.Workgroup, p.Groups, grid)+p.Body,
		func(t graph.DType, name string) string { return arrayType(t, slices.Contains(p.Vec4, name)) },
		"@group(0) @binding(%d) var<storage, read_write> %s: array<%s>;\n")
	return Pass{Source: directives + head + text + "}\n", Args: args, Workgroup: [3]int{p.Workgroup, 1, 1}, Groups: grid,
		WorkgroupMemory: p.WorkgroupMemory, Inside: p.Inside}
}

// bindArrays declares the arrays that a pass uses by a format of index, name and element, and prints the text with
// their names. An array that lies in the memory of an earlier one has that one's name, since no two bindings may
// overlap.
func (l *groupLowering) bindArrays(n *graph.Node, variant graph.Variant, p graph.Pass, text string,
	element func(t graph.DType, name string) string, format string) (head, printed string, args []Arg) {
	names, first := map[string]string{}, map[string]string{}
	for _, name := range p.Uses {
		names[name] = name
		arg, t := l.templateArg(n, variant, name)
		elem := element(t.DType, name)
		if arg.Value != nil {
			key := l.key(arg.Value) + elem
			if earlier, ok := first[key]; ok {
				names[name] = earlier
				continue
			}
			first[key] = name
		}
		head += fmt.Sprintf(format, len(args), name, elem)
		args = append(args, arg)
	}
	return head, os.Expand(text, func(name string) string {
		if names[name] == "" {
			panic(fmt.Sprintf("shaders: a pass of %s does not declare that it uses %s", n.Op.Name(), name))
		}
		return names[name]
	}), args
}

// nativeType is the type in C of the elements of an array.
func nativeType(d graph.DType) string {
	if d.Float16() {
		return "u16"
	}
	return d.Scalar().String()
}

// arrayType is the WGSL type of the elements, or of fours of them, in an array. 16-bit floats are packed two a word.
func arrayType(d graph.DType, vec4 bool) string {
	switch {
	case d.Float16() && vec4:
		return "vec2<u32>"
	case d.Float16():
		return "u32"
	case vec4:
		return "vec4<" + d.Scalar().String() + ">"
	}
	return d.Scalar().String()
}

func (l *groupLowering) templateArg(n *graph.Node, variant graph.Variant, name string) (Arg, graph.Type) {
	var i int
	if _, err := fmt.Sscanf(name[min(3, len(name)):], "%d", &i); err == nil {
		switch name[:3] {
		case "out":
			return Arg{Value: n.Outputs[i]}, n.Outputs[i].Type
		case "tmp":
			return Arg{Scratch: i}, variant.Scratch[i]
		}
	}
	if _, err := fmt.Sscanf(name, "in%d", &i); err != nil {
		panic("shaders: " + n.Op.Name() + " uses " + name)
	}
	return Arg{Value: n.Inputs[i]}, n.Inputs[i].Type
}
