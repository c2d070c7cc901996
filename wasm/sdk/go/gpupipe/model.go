//go:build wasip1

package gpupipe

import (
	"strconv"
	"unsafe"
)

//go:wasmimport gpupipe graph_parameter
func hostParameter(name unsafe.Pointer, length uint32, shape unsafe.Pointer, rank uint32, attributes unsafe.Pointer,
	attributesLength uint32) uint32

//go:wasmimport gpupipe graph_unit
func hostUnit(name unsafe.Pointer, length uint32) uint32

// Unit begins the next unit of a model, a piece that it can be cut at: one f32 [B, T, d] goes from each to the next.
func Unit(name string) { hostUnit(address(name), uint32(len(name))) }

// Parameter is an f32 that is trained; attributes are a JSON object or "".
func Parameter(name, attributes string, shape ...int) Value {
	dims := make([]uint32, len(shape))
	for i, d := range shape {
		dims[i] = uint32(d)
	}
	return Value{hostParameter(address(name), uint32(len(name)), unsafe.Pointer(unsafe.SliceData(dims)), uint32(len(dims)),
		address(attributes), uint32(len(attributes)))}
}

// Normal is a parameter that begins normally distributed.
func Normal(name string, std float64, shape ...int) Value {
	return Parameter(name, `{"init":"normal","std":`+real(std)+`}`, shape...)
}

// Ones is a parameter that begins as ones.
func Ones(name string, shape ...int) Value { return Parameter(name, `{"init":"ones"}`, shape...) }

// Zeros is a parameter that begins as zeros.
func Zeros(name string, shape ...int) Value { return Parameter(name, `{"init":"zeros"}`, shape...) }

// Linear is x·wᵀ, w [outputs, inputs].
func (x Value) Linear(w Value) Value { return Op("matmul", `{"trans_b":true}`, x, w) }

// TopK is the k largest elements of each row of x [N, E]: values [N, k] in descending order, and as the second result
// their columns, u32 [N, k].
func (x Value) TopK(k int) (values, ids Value) {
	values = Op("top_k", `{"k":`+strconv.Itoa(k)+`}`, x)
	return values, values.Second()
}

// GroupRows sorts the pairs of a token and one of its experts, ids u32 [N, k], by expert: the pair in each sorted row
// u32 [N·k], the row of each pair u32 [N, k], and where the rows of each expert begin, u32 [experts + 1].
func (x Value) GroupRows(experts int) (order, place, offsets Value) {
	order = Op("group_rows", `{"experts":`+strconv.Itoa(experts)+`}`, x)
	place = order.Second()
	return order, place, place.Second()
}

// Take is rows of x [M, D] by an index u32 […]: […, D]. The inverse u32 [M, c] lists the positions in the index that
// read each row.
func (x Value) Take(index, inverse Value) Value { return Op("take", "", x, index, inverse) }

// GroupedLinear is x·wᵀ for the rows of each expert: x [R, inputs], w [E, outputs, inputs], offsets u32 [E + 1] of
// GroupRows.
func (x Value) GroupedLinear(w, offsets Value) Value {
	return Op("grouped_matmul", `{"trans_b":true}`, x, w, offsets)
}

// RMSNorm is x/√(mean(x²) + eps)·w along the last axis.
func (x Value) RMSNorm(w Value, eps float64) Value {
	return Op("rms_norm", `{"eps":`+real(eps)+`}`, x, w)
}

// LayerNorm is (x − mean)/√(variance + eps)·w + b along the last axis.
func (x Value) LayerNorm(w, b Value, eps float64) Value {
	return Op("layer_norm", `{"eps":`+real(eps)+`}`, x, w, b)
}

// Rope rotates the two halves of x [B, T, H, D] by the position.
func (x Value) Rope(theta float64) Value { return Op("rope", `{"theta":`+real(theta)+`}`, x) }

// Attention is causal: q [B, T, H, D], k and v [B, T, KV, D] give [B, T, H, D]. With segments u32 [B, T], a token sees
// its own only.
func Attention(q, k, v Value, segments ...Value) Value {
	return Op("attention", "", append([]Value{q, k, v}, segments...)...)
}
