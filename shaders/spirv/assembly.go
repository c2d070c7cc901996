package spirv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// form is how an instruction is written: its number, and its operands, one letter each, as they stand in the text:
//
//	t a type, before the result      = the result      i an id      l an integer      n a number, with a point an f32
//	s a string      e the name of a value      x an integer or a name
//
// "*" takes the letter before it any number of times, "?" at most once.
type form struct {
	op       uint32
	operands string
}

// forms are the instructions that kernels are written in (SPIR-V 1.6, SPV_KHR_cooperative_matrix,
// SPV_NV_tensor_addressing, SPV_NV_cooperative_matrix2).
var forms = map[string]form{
	"OpUndef": {1, "t="}, "OpExtension": {opExtension, "s"}, "OpMemoryModel": {14, "ee"}, "OpEntryPoint": {opEntry, "eisi*"},
	"OpExecutionMode": {opMode, "iex*"}, "OpCapability": {opCapability, "e"},
	"OpTypeVoid": {19, "="}, "OpTypeBool": {opTypeBool, "="}, "OpTypeInt": {opTypeInt, "=ll"}, "OpTypeFloat": {opTypeFloat, "=le?"},
	"OpTypeVector": {opTypeVec, "=il"}, "OpTypeRuntimeArray": {29, "=i"}, "OpTypeStruct": {opTypeStruct, "=i*"},
	"OpTypePointer": {opTypePtr, "=ei"}, "OpTypeFunction": {33, "=ii*"},
	"OpConstant": {opConstant, "t=n"}, "OpConstantFalse": {42, "t="}, "OpConstantComposite": {44, "t=i*"},
	"OpFunction": {opFunction, "t=ei"}, "OpFunctionEnd": {56, ""}, "OpVariable": {opVariable, "t=e"}, "OpLoad": {opLoad, "t=i"},
	"OpStore":       {62, "ii"},
	"OpAccessChain": {opChain, "t=ii*"}, "OpDecorate": {opDecorate, "iex*"}, "OpMemberDecorate": {72, "ilex*"},
	"OpCompositeExtract": {81, "t=il*"},
	"OpIAdd":             {128, "t=ii"}, "OpIMul": {132, "t=ii"}, "OpUDiv": {134, "t=ii"}, "OpUMod": {137, "t=ii"}, "OpSelect": {169, "t=iii"},
	"OpULessThan": {176, "t=ii"},
	"OpLoopMerge": {246, "iie"}, "OpLabel": {248, "="}, "OpBranch": {249, "i"}, "OpBranchConditional": {250, "iii"}, "OpReturn": {253, ""},
	"OpTypeCooperativeMatrixKHR": {opTypeMatrix, "=iiiii"}, "OpCooperativeMatrixMulAddKHR": {4459, "t=iii"},
	// where there is no tensor addressing
	"OpCooperativeMatrixLoadKHR": {opCoopLoad, "t=iii"}, "OpCooperativeMatrixStoreKHR": {4458, "iiii"},
	"OpCooperativeMatrixLoadTensorNV": {opTensorLoad, "t=iiieei*"}, "OpCooperativeMatrixStoreTensorNV": {5368, "iiieei*"},
	"OpTypeTensorLayoutNV": {5370, "=ii"}, "OpTypeTensorViewNV": {5371, "=iii*"}, "OpCreateTensorLayoutNV": {5372, "t="},
	"OpTensorLayoutSetDimensionNV": {5373, "t=ii*"}, "OpTensorLayoutSetStrideNV": {5374, "t=ii*"}, "OpTensorLayoutSliceNV": {5375, "t=ii*"},
	"OpCreateTensorViewNV": {5377, "t="},
}

// values are the names that operands have. No two that are used here share one and differ.
var values = map[string]uint32{
	"Shader": 1, "Float16": capabilityFloat16, "StorageBuffer16BitAccess": 4433, "VulkanMemoryModel": 5345,
	"CooperativeMatrixKHR": capabilityMatrices,
	"BFloat16TypeKHR":      capabilityBfloat16, "BFloat16CooperativeMatrixKHR": capabilityBfloat16Matrix,
	"CooperativeMatrixTensorAddressingNV": 5433, "TensorAddressingNV": 5439,
	"Logical": 0, "Vulkan": 3, "GLCompute": modelCompute, "LocalSize": modeLocalSize, "BFloat16KHR": encodingBfloat16,
	"Block": 2, "ArrayStride": decorationArrayStride, "BuiltIn": 11, "Binding": decorationBinding, "DescriptorSet": decorationSet,
	"Offset": 35, "WorkgroupId": 26, "Input": classInput, "Function": classFunction, "StorageBuffer": classStorageBuffer,
	"None": 0, "DontUnroll": 2, "TensorView": 1,
}

// needed are the features that capabilities need.
var needed = map[string]Features{
	"Shader": 0, "Float16": Float16, "StorageBuffer16BitAccess": Float16, "VulkanMemoryModel": CooperativeMatrix,
	"CooperativeMatrixKHR": CooperativeMatrix,
	"BFloat16TypeKHR":      CooperativeMatrix, "BFloat16CooperativeMatrixKHR": CooperativeMatrix,
	"CooperativeMatrixTensorAddressingNV": TensorAddressing, "TensorAddressingNV": TensorAddressing,
}

// tokens are the words of a line, and its strings with their quotes. A comment is none.
func tokens(line string) (out []string) {
	for {
		line = strings.TrimLeft(line, " \t\r")
		if line == "" || line[0] == ';' {
			return out
		}
		end := strings.IndexAny(line, " \t\r\";")
		if line[0] == '"' {
			end = 1 + strings.IndexByte(line[1:], '"') + 1
		}
		if end <= 0 { // there is no other
			end = len(line)
		}
		out, line = append(out, line[:end]), line[end:]
	}
}

// named reports whether a word is an id.
func named(s string) bool {
	return len(s) > 1 && s[0] == '%' && strings.IndexFunc(s[1:], func(r rune) bool {
		return r != '_' && !('0' <= r && r <= '9') && !('a' <= r && r <= 'z') && !('A' <= r && r <= 'Z')
	}) < 0
}

// version is SPIR-V 1.6, which SPV_NV_cooperative_matrix2 asks for, and Vulkan 1.3 takes.
const version = 0x10600

// Assemble makes a module of SPIR-V assembly, as spirv-as reads it, with names for ids and the instructions above. An
// error names the line of the text, or the feature that the device lacks. Assemble does not check whether the
// instructions are valid together: test texts with spirv-val.
func Assemble(text string, f Features) (*Module, error) {
	a := &assembler{features: f, ids: map[string]uint32{}, defined: map[string]bool{}}
	for i, line := range strings.Split(text, "\n") {
		if err := a.line(i+1, tokens(line)); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	for _, u := range a.uses {
		if !a.defined[u.id] {
			return nil, fmt.Errorf("line %d: %s is not defined", u.line, u.id)
		}
	}
	var code []byte
	for _, w := range append([]uint32{magic, version, 0, uint32(len(a.ids)) + 1, 0}, a.code...) {
		code = binary.LittleEndian.AppendUint32(code, w)
	}
	return Parse(code)
}

type assembler struct {
	features Features
	code     []uint32
	ids      map[string]uint32
	uses     []use // the first of each id
	defined  map[string]bool
}

type use struct {
	id   string
	line int
}

// line assembles one instruction, or none.
func (a *assembler) line(n int, tokens []string) error {
	if len(tokens) == 0 {
		return nil
	}
	result := ""
	if len(tokens) > 2 && tokens[1] == "=" {
		result, tokens = tokens[0], tokens[2:]
	}
	f, known := forms[tokens[0]]
	if !known {
		return fmt.Errorf("unknown instruction %s", tokens[0])
	}
	if strings.Contains(f.operands, "=") != (result != "") {
		return fmt.Errorf("%s: a result is missing, or too many", tokens[0])
	}
	operands, err := a.operands(n, f.operands, result, tokens[1:])
	if err != nil {
		return fmt.Errorf("%s: %w", tokens[0], err)
	}
	if len(operands) >= math.MaxUint16 {
		return fmt.Errorf("%s: %d operands are too many", tokens[0], len(operands))
	}
	a.code = append(a.code, newInstruction(f.op, operands...)...)
	if f.op == opCapability {
		if need, known := needed[tokens[1]]; !known || a.features&need != need {
			return fmt.Errorf("the device has no %s", tokens[1])
		}
	}
	return nil
}

// operands are an instruction's words but the first.
func (a *assembler) operands(line int, letters, result string, tokens []string) (out []uint32, err error) {
	for i := 0; i < len(letters); i++ {
		many := i+1 < len(letters) && letters[i+1] == '*'
		optional := many || i+1 < len(letters) && letters[i+1] == '?'
		for again := true; again; again = many {
			operand := result
			if letters[i] != '=' {
				if len(tokens) == 0 && optional {
					break
				}
				if len(tokens) == 0 {
					return nil, errors.New("an operand is missing")
				}
				operand, tokens = tokens[0], tokens[1:]
			}
			w, err := a.operand(line, letters[i], operand)
			if err != nil {
				return nil, err
			}
			out = append(out, w...)
		}
		if optional {
			i++
		}
	}
	if len(tokens) > 0 {
		return nil, fmt.Errorf("what is %s?", tokens[0])
	}
	return out, nil
}

func (a *assembler) operand(line int, letter byte, s string) ([]uint32, error) {
	switch letter {
	case 't', 'i', '=':
		if !named(s) {
			return nil, fmt.Errorf("%s is not an id", s)
		}
		if letter == '=' && a.defined[s] {
			return nil, fmt.Errorf("%s is defined twice", s)
		}
		return []uint32{a.id(line, s, letter == '=')}, nil
	case 's':
		if len(s) < 2 || s[0] != '"' || strings.Contains(s, "\x00") {
			return nil, fmt.Errorf("%s is not a string", s)
		}
		return words(s[1 : len(s)-1]), nil
	}
	if v, known := values[s]; known && (letter == 'e' || letter == 'x') {
		return []uint32{v}, nil
	}
	if letter == 'n' && strings.Contains(s, ".") {
		if v, err := strconv.ParseFloat(s, 32); err == nil {
			return []uint32{math.Float32bits(float32(v))}, nil
		}
	}
	if v, err := strconv.ParseUint(s, 10, 32); err == nil && letter != 'e' {
		return []uint32{uint32(v)}, nil
	}
	return nil, fmt.Errorf("%s is not one of the values that are known", s)
}

// id is the number of a name.
func (a *assembler) id(line int, s string, defines bool) uint32 {
	if _, known := a.ids[s]; !known {
		a.ids[s] = uint32(len(a.ids)) + 1
		a.uses = append(a.uses, use{s, line})
	}
	a.defined[s] = a.defined[s] || defines
	return a.ids[s]
}
