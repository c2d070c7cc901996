package spirv

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/graph/target"
)

// amendments is the version of amend. Cached modules depend on it.
const amendments = 2

// What naga does not say, by the specifications' numbers.
const (
	opExtension  = 10
	opTypeFirst  = 19   // OpTypeVoid: all types but extensions' follow
	opTypeLast   = 39   // OpTypeForwardPointer
	opTypeMatrix = 4456 // OpTypeCooperativeMatrixKHR

	capabilityFloat16, capabilityBfloat16, capabilityBfloat16Matrix = 9, 5116, 5118

	decorationArrayStride = 6
	encodingBfloat16      = 0 // of OpTypeFloat
	useResult             = 2 // of a cooperative matrix; the other uses are factors
)

// instruction is one with its first word.
type instruction []uint32

func newInstruction(op uint32, operands ...uint32) instruction {
	return append(instruction{uint32(len(operands)+1)<<16 | op}, operands...)
}

func (in instruction) op() uint32 { return in[0] & 0xffff }

// is reports whether in is such an instruction with such operands.
func (in instruction) is(op uint32, at int, operand uint32) bool {
	return in.op() == op && in[at] == operand
}

// amendment is what naga does not know of a kernel: whether its 16-bit floats are bf16, and the size of its matrices,
// if they are not square; otherwise all sides are zero.
type amendment struct {
	bfloat16 bool
	size     target.CooperativeMatrix
}

// source is the text as naga reads it, every line in its place, and what its first lines say that naga does not know.
func source(wgsl string) (string, amendment) {
	var a amendment
	var lines strings.Builder
	for {
		line, rest, _ := strings.Cut(wgsl, "\n")
		size, sized := target.ReadSizeDirective(line + "\n")
		switch {
		case line+"\n" == target.Bfloat16Directive:
			a.bfloat16 = true
		case sized:
			a.size = size
		case strings.HasPrefix(line, "enable "):
			lines.WriteString(line)
		default:
			return lines.String() + wgsl, a
		}
		lines.WriteString("\n")
		wgsl = rest
	}
}

// amend corrects what naga makes of a kernel. Matrices that are factors and whose memory the source declares as whole
// words, so that it must call them f32, are of 16-bit floats; 16-bit floats are bf16, and matrices have other sizes,
// where that is asked for; arrays in workgroup memory have no layout.
func amend(code []byte, a amendment) []byte {
	all := make([]uint32, len(code)/4)
	for i := range all {
		all[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	var list []instruction
	for rest := all[5:]; len(rest) > 0; {
		n := int(rest[0] >> 16)
		list = append(list, rest[:n:n])
		rest = rest[n:]
	}
	list = withoutLayout(withFloat16(withSizes(list, &all[3], a.size), &all[3], a.bfloat16))
	var out []byte
	for _, in := range append([]instruction{all[:5]}, list...) {
		for _, w := range in {
			out = binary.LittleEndian.AppendUint32(out, w)
		}
	}
	return out
}

// withSizes gives matrices their rows and columns, by use, if these are not what naga makes of them; bound is the
// number of ids.
func withSizes(list []instruction, bound *uint32, size target.CooperativeMatrix) []instruction {
	if size.M == 0 {
		return list
	}
	sizes := [][2]int{{size.M, size.K}, {size.K, size.N}, {size.M, size.N}}
	constants := map[uint32]instruction{}
	var out []instruction
	for _, in := range list {
		if in.op() == opConstant {
			constants[in[2]] = in
		}
		if in.op() == opTypeMatrix {
			use := constants[in[6]]
			for i, n := range sizes[use[3]] {
				out = append(out, newInstruction(opConstant, use[1], *bound, uint32(n)))
				in[4+i] = *bound
				*bound++
			}
		}
		out = append(out, in)
	}
	return out
}

// withFloat16 gives factors their type. That type is declared before all others; bound is the number of ids.
func withFloat16(list []instruction, bound *uint32, bfloat16 bool) []instruction {
	var single, half uint32
	uses := map[uint32]uint32{} // constants
	for _, in := range list {
		switch {
		case in.is(opTypeFloat, 2, 32):
			single = in[1]
		case in.is(opTypeFloat, 2, 16):
			half = in[1]
		case in.op() == opConstant:
			uses[in[2]] = in[3]
		}
	}
	factor := func(in instruction) bool { return in.is(opTypeMatrix, 2, single) && uses[in[6]] != useResult }
	if half == 0 {
		if !slices.ContainsFunc(list, factor) {
			return list
		}
		half = *bound
		*bound++
	}
	declared, out := newInstruction(opTypeFloat, half, 16), []instruction{newInstruction(opCapability, capabilityFloat16)}
	var extensions, rest []instruction
	if bfloat16 {
		declared = newInstruction(opTypeFloat, half, 16, encodingBfloat16)
		out = []instruction{newInstruction(opCapability, capabilityBfloat16), newInstruction(opCapability, capabilityBfloat16Matrix)}
		extensions = []instruction{newInstruction(opExtension, words("SPV_KHR_bfloat16")...)}
	}
	for _, in := range list {
		switch {
		case in.is(opCapability, 1, capabilityFloat16), in.is(opTypeFloat, 2, 16):
		case in.op() == opCapability:
			out = append(out, in)
		case factor(in):
			rest = append(rest, newInstruction(opTypeMatrix, in[1], half, in[3], in[4], in[5], in[6]))
		default:
			rest = append(rest, in)
		}
	}
	out = append(out, extensions...)
	types := slices.IndexFunc(rest, func(in instruction) bool { return in.op() >= opTypeFirst && in.op() <= opTypeLast })
	return append(out, slices.Insert(rest, types, declared)...)
}

// withoutLayout takes the layout from arrays that only workgroup memory has.
func withoutLayout(list []instruction) []instruction {
	free := map[uint32]bool{}
	for _, in := range list {
		if in.is(opTypePtr, 2, classWorkgroup) {
			free[in[3]] = true
		}
	}
	for _, in := range list {
		if in.op() == opTypeStruct || in.op() == opTypeArray {
			for _, member := range in[2:] {
				delete(free, member)
			}
		}
	}
	return slices.DeleteFunc(list, func(in instruction) bool {
		return in.op() == opDecorate && free[in[1]] && in[2] == decorationArrayStride
	})
}

// words is a string as an operand.
func words(s string) []uint32 {
	out := make([]uint32, len(s)/4+1)
	for i, c := range []byte(s) {
		out[i/4] |= uint32(c) << (i % 4 * 8)
	}
	return out
}
