package spirv

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bfloat16 is the line of a kernel whose 16-bit floats are bf16. WGSL has no such type: such a kernel may load and
// store them and multiply matrices of them, and nothing else.
const Bfloat16 = "enable gpupipe_bf16;"

// amendments is the version of amend. Cached modules depend on it.
const amendments = 1

// What naga does not say, by the specifications' numbers.
const (
	opExtension  = 10
	opTypeFirst  = 19   // OpTypeVoid: all but those of extensions follow
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

// is reports whether in is such an instruction, with those of its operands.
func (in instruction) is(op uint32, at int, operand uint32) bool {
	return in.op() == op && in[at] == operand
}

// matrixType is the type of a matrix: columns, rows, component and use.
var matrixType = regexp.MustCompile(`coop_mat(8|16)x(8|16)<(\w+), ([ABC])>`)

// amendment is what naga does not know of a kernel: whether its 16-bit floats are bf16, and the rows and columns of
// matrices by their use, if some are not square.
type amendment struct {
	bfloat16 bool
	sizes    map[uint32][2]uint32
}

// source is the text as naga reads it, every line in its place, and what it does not say. naga's text knows square
// matrices alone, its SPIR-V any.
func source(wgsl string) (string, amendment, error) {
	text := strings.Replace(wgsl, Bfloat16, "", 1)
	a := amendment{bfloat16: len(text) < len(wgsl)}
	sizes, square := map[uint32][2]uint32{}, true
	for _, m := range matrixType.FindAllStringSubmatch(text, -1) {
		use := uint32(m[4][0] - 'A')
		columns, _ := strconv.ParseUint(m[1], 10, 32)
		rows, _ := strconv.ParseUint(m[2], 10, 32)
		size := [2]uint32{uint32(rows), uint32(columns)}
		if other, ok := sizes[use]; ok && other != size {
			return "", a, fmt.Errorf("%s: expected matrices of one size for each use, found others of %dx%d", m[0], other[1], other[0])
		}
		sizes[use] = size
		square = square && rows == columns
	}
	if square {
		return text, a, nil
	}
	a.sizes = sizes
	return matrixType.ReplaceAllString(text, "coop_mat16x16<$3, $4>"), a, nil
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
	list = withoutLayout(withFloat16(withSizes(list, &all[3], a.sizes), &all[3], a.bfloat16))
	var out []byte
	for _, in := range append([]instruction{all[:5]}, list...) {
		for _, w := range in {
			out = binary.LittleEndian.AppendUint32(out, w)
		}
	}
	return out
}

// withSizes gives matrices their rows and columns, by use; bound is the number of ids.
func withSizes(list []instruction, bound *uint32, sizes map[uint32][2]uint32) []instruction {
	if len(sizes) == 0 {
		return list
	}
	constants := map[uint32]instruction{}
	var out []instruction
	for _, in := range list {
		if in.op() == opConstant {
			constants[in[2]] = in
		}
		if in.op() == opTypeMatrix {
			use := constants[in[6]]
			for i, n := range sizes[use[3]] {
				out = append(out, newInstruction(opConstant, use[1], *bound, n))
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
	declared, capabilities, extensions := newInstruction(opTypeFloat, half, 16), []uint32{capabilityFloat16}, []string(nil)
	if bfloat16 {
		declared = newInstruction(opTypeFloat, half, 16, encodingBfloat16)
		capabilities, extensions = []uint32{capabilityBfloat16, capabilityBfloat16Matrix}, []string{"SPV_KHR_bfloat16"}
	}
	var out, rest []instruction
	for _, c := range capabilities {
		out = append(out, newInstruction(opCapability, c))
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
	for _, e := range extensions {
		out = append(out, newInstruction(opExtension, words(e)...))
	}
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
