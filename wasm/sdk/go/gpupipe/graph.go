//go:build wasip1

package gpupipe

import (
	"strconv"
	"strings"
	"unsafe"
)

//go:wasmimport gpupipe graph_input
func hostInput(name unsafe.Pointer, length uint32) uint32

//go:wasmimport gpupipe graph_scalar
func hostScalar(name unsafe.Pointer, length uint32) uint32

//go:wasmimport gpupipe graph_op
func hostOp(name unsafe.Pointer, length uint32, inputs unsafe.Pointer, count uint32, attributes unsafe.Pointer,
	attributesLength uint32) uint32

//go:wasmimport gpupipe graph_shape
func hostShape(handle uint32, dims unsafe.Pointer, capacity uint32) int32

// Value is a tensor of the graph. Its methods add ops; a mistake ends the call with an error that names the op.
type Value struct{ handle uint32 }

// Input is a named input: of a loss "logits", "targets", "weights", "hidden", "lm_head.weight", "model.norm.weight" or
// an array of data.aligned; of a model "tokens" or "segments".
func Input(name string) Value { return Value{hostInput(address(name), uint32(len(name)))} }

// Scalar is an f32 [] of a loss that a loss_scalars hook sets for each step.
func Scalar(name string) Value { return Value{hostScalar(address(name), uint32(len(name)))} }

// Op is any op of docs/HOOKS.md; attributes are a JSON object or "".
func Op(name, attributes string, inputs ...Value) Value {
	return Value{hostOp(address(name), uint32(len(name)), unsafe.Pointer(unsafe.SliceData(inputs)), uint32(len(inputs)),
		address(attributes), uint32(len(attributes)))}
}

// Handle is the number by which the host knows the value.
func (x Value) Handle() int32 { return int32(x.handle) }

// Second is the result after this one, of an op that has several.
func (x Value) Second() Value { return Value{x.handle + 1} }

// Shape is the extents of the axes.
func (x Value) Shape() []int {
	var dims [8]uint32
	shape := make([]int, hostShape(x.handle, unsafe.Pointer(&dims), uint32(len(dims))))
	for i := range shape {
		shape[i] = int(dims[i])
	}
	return shape
}

// real is JSON of a number, with hexadecimal digits: they lose nothing.
func real(x float64) string { return strconv.Quote(strconv.FormatFloat(x, 'x', -1, 64)) }

func list(xs []int) string {
	texts := make([]string, len(xs))
	for i, x := range xs {
		texts[i] = strconv.Itoa(x)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

// Number is a constant f32 [].
func Number(v float64) Value { return Op("full", `{"value":`+real(v)+`}`) }

// Scale is c·x.
func (x Value) Scale(c float64) Value { return Op("scale", `{"factor":`+real(c)+`}`, x) }

// Shift is x + c.
func (x Value) Shift(c float64) Value { return Op("shift", `{"offset":`+real(c)+`}`, x) }

// Clamp limits x to [low, high].
func (x Value) Clamp(low, high float64) Value {
	return Op("clamp", `{"low":`+real(low)+`,"high":`+real(high)+`}`, x)
}

// Softcap is c·tanh(x/c).
func (x Value) Softcap(c float64) Value { return Op("softcap", `{"cap":`+real(c)+`}`, x) }

// Cast is x as "f32", "i32" or "u32".
func (x Value) Cast(dtype string) Value { return Op("cast", `{"to":"`+dtype+`"}`, x) }

// Where is x where the condition is not zero, else y.
func Where(condition, x, y Value) Value { return Op("where", "", condition, x, y) }

// Reshape is the same elements in another shape; one extent may be −1.
func (x Value) Reshape(shape ...int) Value { return Op("reshape", `{"shape":`+list(shape)+`}`, x) }

// Broadcast repeats along new leading axes and axes of extent one.
func (x Value) Broadcast(shape ...int) Value { return Op("broadcast", `{"shape":`+list(shape)+`}`, x) }

// Permute puts the axes in another order.
func (x Value) Permute(axes ...int) Value { return Op("permute", `{"axes":`+list(axes)+`}`, x) }

// Slice keeps the coordinates from start to before limit of an axis.
func (x Value) Slice(axis, start, limit int) Value {
	return Op("slice", `{"axis":`+strconv.Itoa(axis)+`,"start":`+strconv.Itoa(start)+`,"limit":`+strconv.Itoa(limit)+`}`, x)
}

func (x Value) reduce(op string, keep bool, axes []int) Value {
	if len(axes) == 0 {
		return Op(op, `{"keep":`+strconv.FormatBool(keep)+`}`, x)
	}
	return Op(op, `{"axes":`+list(axes)+`,"keep":`+strconv.FormatBool(keep)+`}`, x)
}

// Sum adds over axes, all if none is named; they leave the shape, or with keep stay as one. Negative ones count from
// the end.
func (x Value) Sum(keep bool, axes ...int) Value { return x.reduce("sum", keep, axes) }

// Mean is the mean over axes; see Sum.
func (x Value) Mean(keep bool, axes ...int) Value { return x.reduce("mean", keep, axes) }

// Max is the largest over axes; see Sum.
func (x Value) Max(keep bool, axes ...int) Value { return x.reduce("max", keep, axes) }

// Min is the smallest over axes; see Sum.
func (x Value) Min(keep bool, axes ...int) Value { return x.reduce("min", keep, axes) }

// LogSumExp is log Σeˣ along the last axis, without overflow.
func (x Value) LogSumExp() Value {
	top := x.Max(true, -1).StopGradient()
	return x.Sub(top).Exp().Sum(false, -1).Log().Add(top.Sum(false, -1))
}

// Neg is neg of each element.
func (x Value) Neg() Value { return Op("neg", "", x) }

// Exp is exp of each element.
func (x Value) Exp() Value { return Op("exp", "", x) }

// Log is log of each element.
func (x Value) Log() Value { return Op("log", "", x) }

// Sqrt is sqrt of each element.
func (x Value) Sqrt() Value { return Op("sqrt", "", x) }

// Rsqrt is rsqrt of each element.
func (x Value) Rsqrt() Value { return Op("rsqrt", "", x) }

// Tanh is tanh of each element.
func (x Value) Tanh() Value { return Op("tanh", "", x) }

// Sigmoid is sigmoid of each element.
func (x Value) Sigmoid() Value { return Op("sigmoid", "", x) }

// Erf is erf of each element.
func (x Value) Erf() Value { return Op("erf", "", x) }

// Abs is abs of each element.
func (x Value) Abs() Value { return Op("abs", "", x) }

// Square is square of each element.
func (x Value) Square() Value { return Op("square", "", x) }

// Reciprocal is reciprocal of each element.
func (x Value) Reciprocal() Value { return Op("reciprocal", "", x) }

// SiLU is silu of each element.
func (x Value) SiLU() Value { return Op("silu", "", x) }

// GELU is gelu of each element.
func (x Value) GELU() Value { return Op("gelu", "", x) }

// GELUTanh is gelu_tanh of each element.
func (x Value) GELUTanh() Value { return Op("gelu_tanh", "", x) }

// SquaredReLU is squared_relu of each element.
func (x Value) SquaredReLU() Value { return Op("squared_relu", "", x) }

// Not is not of each element.
func (x Value) Not() Value { return Op("not", "", x) }

// IsFinite is is_finite of each element.
func (x Value) IsFinite() Value { return Op("is_finite", "", x) }

// StopGradient is the same value, through which no gradient flows.
func (x Value) StopGradient() Value { return Op("stop_gradient", "", x) }

// Softmax is eˣ/Σeˣ along the last axis.
func (x Value) Softmax() Value { return Op("softmax", "", x) }

// LogSoftmax is x − log Σeˣ along the last axis.
func (x Value) LogSoftmax() Value { return Op("log_softmax", "", x) }

// Transpose exchanges the last two axes.
func (x Value) Transpose() Value { return Op("transpose", "", x) }

// Add is add of the two.
func (x Value) Add(y Value) Value { return Op("add", "", x, y) }

// Sub is sub of the two.
func (x Value) Sub(y Value) Value { return Op("sub", "", x, y) }

// Mul is mul of the two.
func (x Value) Mul(y Value) Value { return Op("mul", "", x, y) }

// Div is div of the two.
func (x Value) Div(y Value) Value { return Op("div", "", x, y) }

// Pow is pow of the two.
func (x Value) Pow(y Value) Value { return Op("pow", "", x, y) }

// Maximum is maximum of the two.
func (x Value) Maximum(y Value) Value { return Op("maximum", "", x, y) }

// Minimum is minimum of the two.
func (x Value) Minimum(y Value) Value { return Op("minimum", "", x, y) }

// And is and of the two.
func (x Value) And(y Value) Value { return Op("and", "", x, y) }

// Or is or of the two.
func (x Value) Or(y Value) Value { return Op("or", "", x, y) }

// Less is less of the two.
func (x Value) Less(y Value) Value { return Op("less", "", x, y) }

// LessEqual is less_equal of the two.
func (x Value) LessEqual(y Value) Value { return Op("less_equal", "", x, y) }

// Greater is greater of the two.
func (x Value) Greater(y Value) Value { return Op("greater", "", x, y) }

// GreaterEqual is greater_equal of the two.
func (x Value) GreaterEqual(y Value) Value { return Op("greater_equal", "", x, y) }

// Equal is equal of the two.
func (x Value) Equal(y Value) Value { return Op("equal", "", x, y) }

// NotEqual is not_equal of the two.
func (x Value) NotEqual(y Value) Value { return Op("not_equal", "", x, y) }

// Pick takes element ids[i] of row i: […, V] and u32 […] give […].
func (x Value) Pick(y Value) Value { return Op("pick", "", x, y) }

// Embedding is rows of a table: [V, D] and u32 […] give […, D].
func (x Value) Embedding(y Value) Value { return Op("embedding", "", x, y) }

// MatMul is the product over the last two axes.
func (x Value) MatMul(y Value) Value { return Op("matmul", "", x, y) }

// CrossEntropy is the negative log-likelihood of targets u32 [N] under logits [N, V]: [N].
func (x Value) CrossEntropy(y Value) Value { return Op("cross_entropy", "", x, y) }
