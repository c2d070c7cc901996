package shaders

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/fuse"
	"github.com/gpupipe/gpupipe/graph/target"
)

// templateKernels declares the arrays that hand-written passes use.
func (c *context) templateKernels() []Kernel {
	n := c.g.Nodes[0]
	t := n.Op.Kernel(n).(graph.Template)
	var ks []Kernel
	for _, variant := range t.Variants(c.lim) {
		k := Kernel{Name: variant.Name, Tolerance: variant.Tolerance}
		for _, s := range variant.Scratch {
			k.Scratch = append(k.Scratch, s.Bytes())
		}
		for _, p := range variant.Passes {
			k.Passes = append(k.Passes, c.templatePass(n, variant, p))
		}
		ks = append(ks, k)
	}
	return ks
}

// templatePass binds the arrays of a pass. An array that lies in the memory of an earlier one takes that one's name,
// since no two bindings may overlap.
func (c *context) templatePass(n *graph.Node, variant graph.Variant, p graph.Pass) Pass {
	if p.Native {
		return c.nativeTemplatePass(n, variant, p)
	}
	var s strings.Builder
	if p.Cooperative {
		s.WriteString("enable wgpu_cooperative_matrix;\n")
		if slices.ContainsFunc(p.Uses, func(name string) bool { _, t := c.templateArg(n, variant, name); return t.DType == graph.BF16 }) {
			s.WriteString("enable gpupipe_bf16;\n")
		}
	}
	var args []Arg
	text := p.Declarations + mainHead(p.Workgroup, p.Groups, c.lim.Fold(p.Groups)) + p.Body
	bound := map[string]string{}
	for _, name := range p.Uses {
		arg, t := c.templateArg(n, variant, name)
		elem := arrayType(t.DType, slices.Contains(p.Vec4, name))
		if arg.Value != nil {
			key := c.key(arg.Value) + elem
			if first, ok := bound[key]; ok {
				text = rename(text, name, first)
				continue
			}
			bound[key] = name
		}
		fmt.Fprintf(&s, "@group(0) @binding(%d) var<storage, read_write> %s: array<%s>;\n", len(args), name, elem)
		args = append(args, arg)
	}
	s.WriteString(text + "}\n")
	return Pass{WGSL: s.String(), Args: args, Workgroup: [3]int{p.Workgroup, 1, 1}, Groups: c.lim.Fold(p.Groups), WorkgroupMemory: p.WorkgroupMemory, Inside: p.Inside}
}

// nativeTemplatePass binds the arrays of a pass in C.
func (c *context) nativeTemplatePass(n *graph.Node, variant graph.Variant, p graph.Pass) Pass {
	var head strings.Builder
	var args []Arg
	text := p.Body
	bound := map[string]string{}
	for _, name := range p.Uses {
		arg, t := c.templateArg(n, variant, name)
		if arg.Value != nil {
			key := c.key(arg.Value)
			if first, ok := bound[key]; ok {
				text = rename(text, name, first)
				continue
			}
			bound[key] = name
		}
		element := fuse.WGSLType(t.DType)
		if t.DType.Float16() {
			element = "u16"
		}
		fmt.Fprintf(&head, "  %s *restrict const %s = args[%d].at;\n", element, name, len(args))
		args = append(args, arg)
	}
	source := target.C + "\n" + p.Declarations + "KERNEL {\n" + head.String() + "  for (u32 group = first; group < last; group++) {\n" + text + "  }\n}\n"
	return Pass{WGSL: source, Args: args, Workgroup: [3]int{1, 1, 1}, Groups: c.lim.Fold(p.Groups), Inside: true}
}

// arrayType is the WGSL type of the elements, or of fours of them, in an array. 16-bit floats are packed two a word.
func arrayType(d graph.DType, vec4 bool) string {
	switch {
	case d.Float16() && vec4:
		return "vec2<u32>"
	case d.Float16():
		return "u32"
	case vec4:
		return "vec4<" + fuse.WGSLType(d) + ">"
	}
	return fuse.WGSLType(d)
}

func (c *context) templateArg(n *graph.Node, variant graph.Variant, name string) (Arg, graph.Type) {
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

func rename(text, from, to string) string {
	return regexp.MustCompile(`\b`+from+`\b`).ReplaceAllString(text, to)
}
