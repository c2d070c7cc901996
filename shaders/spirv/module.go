package spirv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Module is a kernel in SPIR-V, and what a pipeline must know of it.
type Module struct {
	Code            []uint32
	Workgroup       [3]int
	WorkgroupMemory int64              // bytes
	Bindings        map[uint32]Binding // storage buffers of set 0
	Subgroups       bool               // what it computes may depend on their size
	Matrices        bool               // it has cooperative matrices
}

// Binding is what a kernel says of a buffer, and does with it.
type Binding struct {
	ReadOnly bool // it is declared so
	Written  bool // the code may write it
}

// What is read of a module, by the specification's numbers (SPIR-V 1.6, section 3).
const (
	magic = 0x07230203

	opExtInst    = 12
	opEntry      = 15
	opMode       = 16
	opCapability = 17
	opTypeBool   = 20
	opTypeInt    = 21
	opTypeFloat  = 22
	opTypeVec    = 23
	opTypeArray  = 28
	opTypeStruct = 30
	opTypePtr    = 32
	opConstant   = 43
	opFunction   = 54
	opVariable   = 59
	opLoad       = 61
	opChain      = 65
	opInChain    = 66
	opLength     = 68
	opDecorate   = 71
	opAtomLoad   = 227
	opCoopLoad   = 4457
	opTensorLoad = 5367 // OpCooperativeMatrixLoadTensorNV

	// the first two: of all that subgroups do, the first and the last
	capabilitySubgroup, capabilitySubgroupQuad, capabilityMatrices = 61, 68, 6022

	modeLocalSize = 17
	modelCompute  = 5

	decorationNonWritable = 24
	decorationBinding     = 33
	decorationSet         = 34

	classInput, classOutput, classWorkgroup, classPrivate, classFunction, classStorageBuffer = 1, 3, 4, 6, 7, 12
)

// Parse reads a module's interface. It refuses other formats, and bindings that a pipeline of storage buffers cannot
// have.
func Parse(code []byte) (*Module, error) {
	if len(code) < 20 || len(code)%4 != 0 || binary.LittleEndian.Uint32(code) != magic {
		return nil, errors.New("is not SPIR-V")
	}
	p := &parser{Module: Module{Code: make([]uint32, len(code)/4), Bindings: map[uint32]Binding{}},
		sizes: map[uint32]int64{}, pointees: map[uint32]int64{}, constants: map[uint32]uint32{}, decorated: map[[2]uint32]uint32{},
		pointers: map[uint32]uint32{}}
	for i := range p.Code {
		p.Code[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	for rest := p.Code[5:]; len(rest) > 0; {
		n := int(rest[0] >> 16)
		if n == 0 || n > len(rest) {
			return nil, errors.New("is damaged SPIR-V")
		}
		if err := p.instruction(rest[0]&0xffff, rest[1:n]); err != nil {
			return nil, err
		}
		rest = rest[n:]
	}
	if p.entries != 1 || p.Workgroup == [3]int{} {
		return nil, errors.New("has not one compute shader called main")
	}
	return &p.Module, nil
}

type parser struct {
	Module
	entries   int
	sizes     map[uint32]int64     // bytes of a type in workgroup memory, by its id
	pointees  map[uint32]int64     // bytes of what a pointer type points to
	constants map[uint32]uint32    // the lowest word
	decorated map[[2]uint32]uint32 // first operand, by target and decoration
	pointers  map[uint32]uint32    // to storage: id → binding
	code      bool                 // within the functions
}

// operands an instruction must have, of those that are read.
var operands = map[uint32]int{opCapability: 1, opExtInst: 4, opEntry: 3, opMode: 2, opTypeBool: 1, opTypeInt: 3, opTypeFloat: 2,
	opTypeVec: 3, opTypeArray: 3,
	opTypeStruct: 1, opTypePtr: 3, opConstant: 3, opVariable: 3, opDecorate: 2, opChain: 3, opInChain: 3}

func (p *parser) instruction(op uint32, a []uint32) error {
	if len(a) < operands[op] {
		return errors.New("is damaged SPIR-V")
	}
	switch op {
	case opCapability:
		p.Matrices = p.Matrices || a[0] == capabilityMatrices
		p.Subgroups = p.Subgroups || a[0] >= capabilitySubgroup && a[0] <= capabilitySubgroupQuad || a[0] == capabilityMatrices
	case opEntry:
		const main, end = 'm' | 'a'<<8 | 'i'<<16 | 'n'<<24, 0
		if a[0] == modelCompute && len(a) > 3 && a[2] == main && a[3] == end {
			p.entries++
		}
	case opMode:
		if a[1] == modeLocalSize && len(a) >= 5 {
			p.Workgroup = [3]int{int(a[2]), int(a[3]), int(a[4])}
		}
	case opTypeBool:
		p.sizes[a[0]] = 4
	case opTypeInt, opTypeFloat:
		p.sizes[a[0]] = int64(a[1]) / 8
	case opTypeVec:
		p.sizes[a[0]] = int64(a[2]+a[2]%2) * p.sizes[a[1]] // three take the place of four
	case opTypeArray:
		p.sizes[a[0]] = product(int64(p.constants[a[2]]), p.sizes[a[1]])
	case opTypeStruct:
		for _, member := range a[1:] {
			p.sizes[a[0]] = min(p.sizes[a[0]]+p.sizes[member], math.MaxInt32)
		}
	case opTypePtr:
		p.pointees[a[0]] = p.sizes[a[2]]
	case opConstant:
		p.constants[a[1]] = a[2]
	case opDecorate:
		var value uint32
		if len(a) > 2 {
			value = a[2]
		}
		p.decorated[[2]uint32{a[0], a[1]}] = value
	case opVariable:
		return p.variable(a[0], a[1], a[2])
	case opFunction:
		p.code = true
	case opChain, opInChain:
		if b, known := p.pointers[a[2]]; known {
			p.pointers[a[1]] = b
		}
	case opLoad, opLength, opAtomLoad, opCoopLoad, opTensorLoad:
	case opExtInst:
		p.mayWrite(a[4:]) // before the arguments stands the function's number, which is no id
	default:
		p.mayWrite(a)
	}
	return nil
}

// mayWrite marks the buffers that an instruction has pointers to: what it does with them is not asked. A number that
// looks like a pointer makes a barrier too many at worst.
func (p *parser) mayWrite(a []uint32) {
	for _, id := range a {
		if i, known := p.pointers[id]; known && p.code {
			b := p.Bindings[i]
			b.Written = true
			p.Bindings[i] = b
		}
	}
}

func (p *parser) variable(pointer, id, class uint32) error {
	switch class {
	case classInput, classOutput, classPrivate, classFunction:
		return nil
	case classWorkgroup:
		p.WorkgroupMemory = min(p.WorkgroupMemory+p.pointees[pointer], math.MaxInt32)
		return nil
	}
	set, bound := p.decorated[[2]uint32{id, decorationSet}]
	binding := p.decorated[[2]uint32{id, decorationBinding}]
	if !bound || class != classStorageBuffer || set != 0 {
		return fmt.Errorf("group %d, binding %d is not a storage buffer of group 0", set, binding)
	}
	if _, twice := p.Bindings[binding]; twice {
		return fmt.Errorf("two variables have binding %d", binding)
	}
	_, readOnly := p.decorated[[2]uint32{id, decorationNonWritable}]
	p.Bindings[binding], p.pointers[id] = Binding{ReadOnly: readOnly}, binding
	return nil
}

// product is a·b, or math.MaxInt32 where that is less: no device has so much.
func product(a, b int64) int64 {
	if b > 0 && a > math.MaxInt32/b {
		return math.MaxInt32
	}
	return a * b
}
