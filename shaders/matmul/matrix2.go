package matmul

import (
	"fmt"
	"math"
	"strings"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/target"
)

// matrix2 is the kernel for cooperative matrices of whole workgroups (SPV_NV_cooperative_matrix2). It is written in
// SPIR-V assembly, since WGSL has no such type. A workgroup computes a tile of C as one matrix. It iterates over slices
// of A and B of depth k's each, which it loads from global memory as one matrix each. The driver distributes the
// elements over the invocations and uses workgroup memory as it needs.
type matrix2 struct {
	threads           int // invocations of a workgroup: the number that the device requires
	rows, cols, depth int
	splits            int // ranges of k
}

var matrix2Shapes = [...]matrix2{
	{rows: 64, cols: 64, depth: 32},
	{rows: 128, cols: 128, depth: 32},
	{rows: 128, cols: 128, depth: 64},
	{rows: 256, cols: 128, depth: 64},
	{rows: 128, cols: 256, depth: 64},
}

// minSums and maxSums bound the elements of C that an invocation holds. A tile with fewer is too small for a workgroup,
// and more do not fit into registers.
const minSums, maxSums = 32, 128

func matrix2Variants(s Spec, l target.Limits) []Kernel {
	if s.Grouping != graph.Ungrouped || s.Shared || s.TypeA == F32 || s.TypeA != s.TypeB || !addressable(s) {
		return nil
	}
	var ks []Kernel
	seen := map[matrix2]bool{}
	for _, f := range l.Flexible {
		for _, t := range matrix2Shapes {
			t.threads, t.splits = f.Invocations, 1
			if f.Input != s.TypeA.String() || f.Result != F32.String() || seen[t] || !t.fits(s, l, f) {
				continue
			}
			seen[t] = true
			ks = append(ks, t.kernel(s, l))
			splits := min(fillTensor/t.count(s), s.K/(8*t.depth), 32, l.MaxDispatchDimension/s.Batch, maxElements/(s.Batch*s.M*s.N+64))
			if splits > 1 {
				t.splits = splits
				t.splits = ceilDiv(s.K, t.splitDepth(s)) // so that none is empty
				ks = append(ks, t.kernel(s, l))
			}
		}
	}
	return ks
}

// maxElements is the largest number of elements of an array: drivers may compute indices as i32 or as u32.
const maxElements = math.MaxInt32

// addressable reports whether each matrix is aligned to sixteen bytes, as SPV_NV_cooperative_matrix2 requires of
// pointers, and no array is too large.
func addressable(s Spec) bool {
	last := s.Batch - 1
	aligned := s.Batch == 1 || s.BatchStrideA%8 == 0 && s.BatchStrideB%8 == 0 && s.M*s.N%4 == 0
	return aligned && max(last*s.BatchStrideA+s.M*s.K, last*s.BatchStrideB+s.K*s.N, s.Batch*s.M*s.N+64) <= maxElements
}

// fits reports whether the device multiplies matrices of these sizes and supports the workgroups.
func (t matrix2) fits(s Spec, l target.Limits, f target.FlexibleMatrix) bool {
	sums := t.rows * t.cols / max(t.threads, 1)
	groups := t.groups(s)
	return t.threads > 0 && t.threads <= min(l.MaxInvocations, l.MaxWorkgroupSize[0]) && sums >= minSums && sums <= maxSums &&
		min(f.M, f.N, f.K) > 0 && t.rows%f.M == 0 && t.cols%f.N == 0 && t.depth%f.K == 0 && max(t.rows, t.cols, t.depth) <= f.Largest &&
		f.Reserved <= l.MaxWorkgroupMemory &&
		max(groups[0], groups[1], groups[2]) <= l.MaxDispatchDimension &&
		// except for the smallest tile, at most half of a tile lies outside C
		(t.rows == 64 || t.rows < 2*roundUp(s.M, 16) && t.cols < 2*roundUp(s.N, 16))
}

func (t matrix2) groups(s Spec) [3]int {
	return [3]int{ceilDiv(s.N, t.cols), ceilDiv(s.M, t.rows), s.Batch * t.splits}
}

// count is the number of workgroups of one split.
func (t matrix2) count(s Spec) int { return s.Batch * ceilDiv(s.M, t.rows) * ceilDiv(s.N, t.cols) }

// splitDepth is the number of k's in a split's range.
func (t matrix2) splitDepth(s Spec) int { return roundUp(ceilDiv(s.K, t.splits), t.depth) }

// cost is twice the cost of a kernel for subgroup matrices. The speed of this kernel depends on the driver, so it
// should only be chosen by timing.
func (t matrix2) cost(s Spec) float64 {
	perK := 2 * (float64(t.rows*t.cols)/16 + float64(t.rows+t.cols))
	waves := float64(ceilDiv(t.count(s)*t.splits, fillTensor))
	cost := waves * perK * float64(ceilDiv(s.K, t.splits)+64)
	if t.splits > 1 || s.Declare != nil {
		cost += 2e5 + float64(s.Batch*s.M*s.N*t.splits)/fillTensor
	}
	return cost
}

// kernel returns one pass, which stores C, if there is no epilogue and one split. Otherwise that pass stores the sums
// to scratch, and a second pass, in WGSL, adds them and applies the epilogue.
func (t matrix2) kernel(s Spec, l target.Limits) Kernel {
	k := Kernel{Name: fmt.Sprintf("matrix2 %dx%dx%d/%d", t.rows, t.cols, t.depth, t.threads), Cost: t.cost(s)}
	size := s.splitSize()
	first := Pass{Code: t.text(s, size), Bindings: []Binding{{Operand: A}, {Operand: B}, {Operand: C}},
		Workgroup: [3]int{t.threads, 1, 1}, Groups: t.groups(s)}
	if t.splits == 1 && s.Declare == nil {
		k.Passes = []Pass{first}
		return k
	}
	if t.splits > 1 {
		k.Name += fmt.Sprintf(" split %d", t.splits)
	}
	first.bind(C, Binding{Operand: Scratch, Size: 4 * size * t.splits})
	last := reduction(s, l, size, t.splits)
	k.Scratch = last.Bindings[1].Offset + last.Bindings[1].Size
	k.Passes = []Pass{first, last}
	return k
}

// text is the assembly of the first pass; splitSize is Spec.splitSize.
func (t matrix2) text(s Spec, splitSize int) string {
	half := "OpTypeFloat 16"
	extra := "OpCapability Float16\n"
	if s.TypeA == BF16 {
		half += " BFloat16KHR"
		extra = "OpCapability BFloat16TypeKHR\nOpCapability BFloat16CooperativeMatrixKHR\nOpExtension \"SPV_KHR_bfloat16\"\n"
	}
	a := tensor{"a", "%m", "%k", "%row %rows", "%at %depth", s.TransA, s.M%t.rows == 0 && s.K%t.depth == 0}
	b := tensor{"b", "%k", "%n", "%at %depth", "%column %columns", s.TransB, s.N%t.cols == 0 && s.K%t.depth == 0}
	c := tensor{"c", "%m", "%n", "%row %rows", "%column %columns", false, s.M%t.rows == 0 && s.N%t.cols == 0}
	var constants strings.Builder
	for _, x := range []struct {
		name  string
		value int
	}{{"rows", t.rows}, {"columns", t.cols}, {"depth", t.depth}, {"m", s.M}, {"n", s.N}, {"k", s.K}, {"splits", t.splits},
		{"part_depth", t.splitDepth(s)},
		{"stride_a", s.BatchStrideA}, {"stride_b", s.BatchStrideB}, {"stride_c", s.M * s.N}, {"part_size", splitSize}} {
		fmt.Fprintf(&constants, "%%%s = OpConstant %%uint %d\n", x.name, x.value)
	}
	return strings.NewReplacer("EXTRA\n", extra, "THREADS", fmt.Sprint(t.threads), "HALF", half, "CONSTANTS\n", constants.String(),
		"LAYOUTS\n", a.layout()+b.layout()+c.layout(), "SLICE_A\n", a.slice(), "SLICE_B\n", b.slice(), "SLICE_C\n", c.slice(),
		"VIEW_A", a.view(), "VIEW_B", b.view()).Replace(matrix2Text)
}

// tensor is the layout of a matrix in memory: row by row or, if transposed, column by column.
type tensor struct {
	name               string
	rows, columns      string // of the matrix
	rowSlice, colSlice string // the first row or column of a slice, and how many it has
	transposed         bool
	inside             bool // all slices lie inside the matrix
}

// kind is the type of the tensor's layouts.
func (x tensor) kind() string {
	if x.inside {
		return "%unclamped"
	}
	return "%clamped"
}

// layout emits the instructions that create the tensor's layout of two dimensions.
func (x tensor) layout() string {
	first, second := x.rows, x.columns
	if x.transposed {
		first, second = second, first
	}
	return strings.NewReplacer("KIND", x.kind(), "NAME", x.name, "FIRST", first, "SECOND", second).Replace(`%layout_NAME0 = OpCreateTensorLayoutNV KIND
%layout_NAME1 = OpTensorLayoutSetDimensionNV KIND %layout_NAME0 FIRST SECOND
%layout_NAME = OpTensorLayoutSetStrideNV KIND %layout_NAME1 SECOND %one
`)
}

func (x tensor) slice() string {
	first, second := x.rowSlice, x.colSlice
	if x.transposed {
		first, second = second, first
	}
	return fmt.Sprintf("%%slice_%s = OpTensorLayoutSliceNV %s %%layout_%s %s %s\n", x.name, x.kind(), x.name, first, second)
}

// view is the operand of a load that transposes the slice, or None.
func (x tensor) view() string {
	if x.transposed {
		return "TensorView %turned"
	}
	return "None"
}

// matrix2Text is the template of the kernel. It needs no memory barriers, since no workgroup reads what another writes.
const matrix2Text = target.Assembly + `
OpCapability Shader
OpCapability StorageBuffer16BitAccess
OpCapability VulkanMemoryModel
OpCapability CooperativeMatrixKHR
OpCapability TensorAddressingNV
OpCapability CooperativeMatrixTensorAddressingNV
EXTRA
OpExtension "SPV_KHR_cooperative_matrix"
OpExtension "SPV_NV_tensor_addressing"
OpExtension "SPV_NV_cooperative_matrix2"
OpMemoryModel Logical Vulkan
OpEntryPoint GLCompute %main "main" %workgroup %a %b %c
OpExecutionMode %main LocalSize THREADS 1 1
OpDecorate %workgroup BuiltIn WorkgroupId
OpDecorate %half_array ArrayStride 2
OpDecorate %floats16 Block
OpMemberDecorate %floats16 0 Offset 0
OpDecorate %float_array ArrayStride 4
OpDecorate %floats Block
OpMemberDecorate %floats 0 Offset 0
OpDecorate %a DescriptorSet 0
OpDecorate %a Binding 0
OpDecorate %b DescriptorSet 0
OpDecorate %b Binding 1
OpDecorate %c DescriptorSet 0
OpDecorate %c Binding 2
%void = OpTypeVoid
%function = OpTypeFunction %void
%bool = OpTypeBool
%uint = OpTypeInt 32 0
%uint3 = OpTypeVector %uint 3
%float = OpTypeFloat 32
%half = HALF
%false = OpConstantFalse %bool
%zero = OpConstant %uint 0
%one = OpConstant %uint 1
%two = OpConstant %uint 2
%nothing = OpConstant %float 0.0
CONSTANTS
%half_array = OpTypeRuntimeArray %half
%floats16 = OpTypeStruct %half_array
%float_array = OpTypeRuntimeArray %float
%floats = OpTypeStruct %float_array
%to_uint3 = OpTypePointer Input %uint3
%to_floats16 = OpTypePointer StorageBuffer %floats16
%to_half = OpTypePointer StorageBuffer %half
%to_floats = OpTypePointer StorageBuffer %floats
%to_float = OpTypePointer StorageBuffer %float
%workgroup = OpVariable %to_uint3 Input
%a = OpVariable %to_floats16 StorageBuffer
%b = OpVariable %to_floats16 StorageBuffer
%c = OpVariable %to_floats StorageBuffer
; of a workgroup, for use as A, B and sum
%matrix_a = OpTypeCooperativeMatrixKHR %half %two %rows %depth %zero
%matrix_b = OpTypeCooperativeMatrixKHR %half %two %depth %columns %one
%matrix_c = OpTypeCooperativeMatrixKHR %float %two %rows %columns %two
%nothings = OpConstantComposite %matrix_c %nothing
; of two dimensions; what lies outside is not looked for, or a constant, 0
%unclamped = OpTypeTensorLayoutNV %two %zero
%clamped = OpTypeTensorLayoutNV %two %one
%transposing = OpTypeTensorViewNV %two %false %one %zero
%to_sum = OpTypePointer Function %matrix_c
%to_uint = OpTypePointer Function %uint

%main = OpFunction %void None %function
%start = OpLabel
%sum = OpVariable %to_sum Function
%next = OpVariable %to_uint Function
%place = OpLoad %uint3 %workgroup
%x = OpCompositeExtract %uint %place 0
%y = OpCompositeExtract %uint %place 1
%z = OpCompositeExtract %uint %place 2
%column = OpIMul %uint %x %columns
%row = OpIMul %uint %y %rows
%item = OpUDiv %uint %z %splits
%part = OpUMod %uint %z %splits
%begin = OpIMul %uint %part %part_depth
%stop = OpIAdd %uint %begin %part_depth
%early = OpULessThan %bool %stop %k
%end = OpSelect %uint %early %stop %k
%offset_a = OpIMul %uint %item %stride_a
%offset_b = OpIMul %uint %item %stride_b
%item_c = OpIMul %uint %item %stride_c
%part_c = OpIMul %uint %part %part_size
%offset_c = OpIAdd %uint %item_c %part_c
%from_a = OpAccessChain %to_half %a %zero %offset_a
%from_b = OpAccessChain %to_half %b %zero %offset_b
%into_c = OpAccessChain %to_float %c %zero %offset_c
%turned = OpCreateTensorViewNV %transposing
LAYOUTS
OpStore %sum %nothings
OpStore %next %begin
OpBranch %head
%head = OpLabel
OpLoopMerge %done %step DontUnroll
OpBranch %test
%test = OpLabel
%at = OpLoad %uint %next
%more = OpULessThan %bool %at %end
OpBranchConditional %more %multiply %done
%multiply = OpLabel
SLICE_A
SLICE_B
%any_a = OpUndef %matrix_a
%any_b = OpUndef %matrix_b
%factor_a = OpCooperativeMatrixLoadTensorNV %matrix_a %from_a %any_a %slice_a None VIEW_A
%factor_b = OpCooperativeMatrixLoadTensorNV %matrix_b %from_b %any_b %slice_b None VIEW_B
%before = OpLoad %matrix_c %sum
%after = OpCooperativeMatrixMulAddKHR %matrix_c %factor_a %factor_b %before
OpStore %sum %after
OpBranch %step
%step = OpLabel
%beyond = OpIAdd %uint %at %depth
OpStore %next %beyond
OpBranch %head
%done = OpLabel
%result = OpLoad %matrix_c %sum
SLICE_C
OpCooperativeMatrixStoreTensorNV %into_c %result %slice_c None None
OpReturn
OpFunctionEnd
`
