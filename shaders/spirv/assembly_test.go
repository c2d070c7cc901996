package spirv

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counting writes, for each workgroup, how often x may be halved. It has a loop, constants, both kinds of variables and
// two bindings.
const counting = `; SPIR-V
OpCapability Shader
OpExtension "SPV_KHR_storage_buffer_storage_class" ; in every version since
OpMemoryModel Logical Vulkan
OpEntryPoint GLCompute %main "main" %group %in %out
OpExecutionMode %main LocalSize 8 4 2
OpDecorate %group BuiltIn WorkgroupId
OpDecorate %array ArrayStride 4
OpDecorate %words Block
OpMemberDecorate %words 0 Offset 0
OpDecorate %in DescriptorSet 0
OpDecorate %in Binding 0
OpDecorate %out DescriptorSet 0
OpDecorate %out Binding 1
%void = OpTypeVoid
%function = OpTypeFunction %void
%bool = OpTypeBool
%uint = OpTypeInt 32 0
%uint3 = OpTypeVector %uint 3
%float = OpTypeFloat 32
%array = OpTypeRuntimeArray %uint
%words = OpTypeStruct %array
%to_uint3 = OpTypePointer Input %uint3
%to_words = OpTypePointer StorageBuffer %words
%to_word = OpTypePointer StorageBuffer %uint
%to_uint = OpTypePointer Function %uint
%zero = OpConstant %uint 0
%one = OpConstant %uint 1
%two = OpConstant %uint 4294967295
%third = OpConstant %float 0.3333
%thirds = OpConstantComposite %uint3 %zero %one %two
%no = OpConstantFalse %bool
%group = OpVariable %to_uint3 Input
%in = OpVariable %to_words StorageBuffer
%out = OpVariable %to_words StorageBuffer

%main = OpFunction %void None %function
%start = OpLabel
%n = OpVariable %to_uint Function
%g = OpLoad %uint3 %group
%x = OpCompositeExtract %uint %g 0
%any = OpUndef %uint
%from = OpAccessChain %to_word %in %zero %x
%v = OpLoad %uint %from
OpStore %n %v
OpBranch %head
%head = OpLabel
OpLoopMerge %done %step DontUnroll
OpBranch %test
%test = OpLabel
%now = OpLoad %uint %n
%more = OpULessThan %bool %one %now
OpBranchConditional %more %step %done
%step = OpLabel
%half = OpUDiv %uint %now %two
%rest = OpUMod %uint %now %two
%product = OpIMul %uint %half %rest
%sum = OpIAdd %uint %product %half
%chosen = OpSelect %uint %more %sum %half
OpStore %n %chosen
OpBranch %head
%done = OpLabel
%into = OpAccessChain %to_word %out %zero %x
OpStore %into %v
OpReturn
OpFunctionEnd
`

// Every word but the one that names the tool is spirv-as's.
func TestAssemblyIsThatOfSPIRVTools(t *testing.T) {
	text := strings.Replace(counting, "OpCapability Shader\n", "OpCapability Shader\nOpCapability VulkanMemoryModel\n", 1)
	m, err := Assemble(text, CooperativeMatrix)
	require.NoError(t, err)
	assert.Equal(t, [3]int{8, 4, 2}, m.Workgroup)
	assert.Equal(t, map[uint32]Binding{0: {}, 1: {Written: true}}, m.Bindings)
	if runtime.GOOS != "linux" {
		t.Skip("spirv-as is for Linux, where modules are used")
	}
	valid(t, m)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m.txt"), []byte(text), 0o600))
	out, err := exec.Command("spirv-as", "--target-env", "spv1.6", "-o", filepath.Join(dir, "m.spv"),
		filepath.Join(dir, "m.txt")).CombinedOutput()
	require.NoError(t, err, "spirv-as (Debian's spirv-tools): %s", out)
	b, err := os.ReadFile(filepath.Join(dir, "m.spv"))
	require.NoError(t, err)
	var want []uint32
	for ; len(b) > 0; b = b[4:] {
		want = append(want, binary.LittleEndian.Uint32(b))
	}
	want[2] = 0
	assert.Equal(t, want, m.Code)
}

// The instructions of extensions, which spirv-as may be too old for, by the numbers in their specifications.
func TestAssemblyOfExtensions(t *testing.T) {
	for text, want := range map[string][]uint32{
		"OpCapability CooperativeMatrixKHR":                                   {17, 6022},
		"OpCapability TensorAddressingNV":                                     {17, 5439},
		"OpCapability CooperativeMatrixTensorAddressingNV":                    {17, 5433},
		"OpCapability BFloat16TypeKHR":                                        {17, 5116},
		"OpCapability BFloat16CooperativeMatrixKHR":                           {17, 5118},
		"%1 = OpTypeFloat 16 BFloat16KHR":                                     {22, 1, 16, 0},
		"%1 = OpTypeCooperativeMatrixKHR %2 %3 %4 %5 %6":                      {4456, 1, 2, 3, 4, 5, 6},
		"%2 = OpCooperativeMatrixLoadKHR %1 %3 %4 %5":                         {4457, 1, 2, 3, 4, 5},
		"OpCooperativeMatrixStoreKHR %1 %2 %3 %4":                             {4458, 1, 2, 3, 4},
		"%2 = OpCooperativeMatrixMulAddKHR %1 %3 %4 %5":                       {4459, 1, 2, 3, 4, 5},
		"%2 = OpCooperativeMatrixLoadTensorNV %1 %3 %4 %5 None None":          {5367, 1, 2, 3, 4, 5, 0, 0},
		"%2 = OpCooperativeMatrixLoadTensorNV %1 %3 %4 %5 None TensorView %6": {5367, 1, 2, 3, 4, 5, 0, 1, 6},
		"OpCooperativeMatrixStoreTensorNV %1 %2 %3 None None":                 {5368, 1, 2, 3, 0, 0},
		"%1 = OpTypeTensorLayoutNV %2 %3":                                     {5370, 1, 2, 3},
		"%1 = OpTypeTensorViewNV %2 %3 %4 %5":                                 {5371, 1, 2, 3, 4, 5},
		"%2 = OpCreateTensorLayoutNV %1":                                      {5372, 1, 2},
		"%2 = OpTensorLayoutSetDimensionNV %1 %3 %4 %5":                       {5373, 1, 2, 3, 4, 5},
		"%2 = OpTensorLayoutSetStrideNV %1 %3 %4 %5":                          {5374, 1, 2, 3, 4, 5},
		"%2 = OpTensorLayoutSliceNV %1 %3 %4 %5 %6 %7":                        {5375, 1, 2, 3, 4, 5, 6, 7},
		"%2 = OpCreateTensorViewNV %1":                                        {5377, 1, 2},
	} {
		a := &assembler{features: ^Features(0), ids: map[string]uint32{"%1": 1, "%2": 2, "%3": 3, "%4": 4, "%5": 5, "%6": 6, "%7": 7},
			defined: map[string]bool{}}
		require.NoError(t, a.line(1, tokens(text)), text)
		assert.Equal(t, append([]uint32{uint32(len(want))<<16 | want[0]}, want[1:]...), a.code, text)
	}
}

func TestAssemblyMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"OpNonsense":                       "line 1: unknown instruction OpNonsense",
		"\n%a = OpTypeVoid 3":              "line 2: OpTypeVoid: what is 3?",
		"%a = OpTypeInt 32":                "line 1: OpTypeInt: an operand is missing",
		"%a = OpTypeInt 32 none":           "OpTypeInt: none is not one of the values that are known",
		"%a = OpTypeInt 32 4294967296":     "4294967296 is not one of",
		"%a = OpTypeInt 32 -1":             "-1 is not one of",
		"OpTypeVoid":                       "a result is missing, or too many",
		"%a = OpReturn":                    "a result is missing, or too many",
		"a = OpTypeVoid":                   "a is not an id",
		"%a = OpTypeVector b 3":            "b is not an id",
		"%a = OpTypeVoid\n%a = OpTypeBool": "line 2: OpTypeBool: %a is defined twice",
		"OpReturn ; not %a\nOpBranch %a":   "line 2: %a is not defined",
		"OpCapability Linkage":             "Linkage is not one of",
		"OpCapability None":                "the device has no None",
		"OpCapability Float16":             "line 1: the device has no Float16",
		"OpExtension SPV":                  "SPV is not a string",
		`OpExtension "SPV`:                 "is not a string",
		"OpExtension \"S\x00\"":            "is not a string",
		"%a = OpConstant %b 0.x":           "0.x is not one of",
		"":                                 "has not one compute shader called main",
		"OpExtension \"" + strings.Repeat("a", 300000) + `"`: "operands are too many",
	} {
		_, err := Assemble(text, 0)
		require.Error(t, err, text)
		assert.Contains(t, err.Error(), want)
	}
}

// Whatever the text, there is a module or an error.
func FuzzAssemble(f *testing.F) {
	f.Add(counting)
	f.Add("%a = OpTypeInt 32 0 ; \"\n\"%b = \xff\nOpDecorate %a Binding")
	f.Add("OpEntryPoint GLCompute %a \"\"\nOpDecorate %a Block 1 2 3\n%a = OpTypeStruct %a %a\n%b = OpTypePointer StorageBuffer %a")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Assemble(text, ^Features(0))
		assert.Equal(t, err == nil, m != nil)
	})
}
