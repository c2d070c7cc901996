package graphhook

import (
	"fmt"
	"strconv"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/op"
)

// kind is an op that modules can apply.
type kind struct {
	least, most int // numbers of inputs
	make        func(b *Builder, in []*graph.Value, attributes []byte) ([]*graph.Value, error)
}

func (k kind) arity() string {
	if k.least == k.most {
		return strconv.Itoa(k.least)
	}
	return fmt.Sprintf("%d to %d", k.least, k.most)
}

// kinds are the ops by name. Inputs of different shapes are broadcast by NumPy's rules.
var kinds = map[string]kind{
	"neg": unary(op.Neg), "exp": unary(op.Exp), "log": unary(op.Log), "sqrt": unary(op.Sqrt), "rsqrt": unary(op.Rsqrt),
	"tanh": unary(op.Tanh), "sigmoid": unary(op.Sigmoid), "erf": unary(op.Erf), "abs": unary(op.Abs), "square": unary(op.Square),
	"reciprocal": unary(op.Reciprocal), "silu": unary(op.SiLU), "gelu": unary(op.GELU), "gelu_tanh": unary(op.GELUTanh),
	"squared_relu": unary(op.SquaredReLU),
	"not":          unary(op.Not), "is_finite": unary(op.IsFinite), "stop_gradient": unary(op.StopGradient),
	"softmax": unary(op.Softmax), "log_softmax": unary(op.LogSoftmax), "transpose": unary(op.Transpose),

	"add": binary(op.Add), "sub": binary(op.Sub), "mul": binary(op.Mul), "div": binary(op.Div), "pow": binary(op.Pow),
	"maximum": binary(op.Maximum), "minimum": binary(op.Minimum), "and": binary(op.And), "or": binary(op.Or),
	"less": binary(op.Less), "less_equal": binary(op.LessEqual), "greater": binary(op.Greater),
	"greater_equal": binary(op.GreaterEqual), "equal": binary(op.Equal), "not_equal": binary(op.NotEqual),
	"pick": binary(op.Pick), "embedding": binary(op.Embedding),
	"where": of(3, func(_ *Builder, in []*graph.Value, _ none) *graph.Value { return op.Where(in[0], in[1], in[2]) }),

	"attention": upTo(3, 4, func(_ *Builder, in []*graph.Value, _ none) []*graph.Value {
		segments := append(in, nil)[3]
		return []*graph.Value{op.SegmentedAttention(in[0], in[1], in[2], segments)}
	}),
	"rope":       ropeKind,
	"rms_norm":   normed(2, func(in []*graph.Value, eps float64) *graph.Value { return op.RMSNorm(in[0], in[1], eps) }),
	"layer_norm": normed(3, func(in []*graph.Value, eps float64) *graph.Value { return op.LayerNorm(in[0], in[1], in[2], eps) }),

	"sum": reduction(op.Sum), "mean": reduction(op.Mean), "max": reduction(op.ReduceMax), "min": reduction(op.ReduceMin),
	"scale": of(1, func(_ *Builder, in []*graph.Value, a struct {
		Factor real `json:"factor"`
	}) *graph.Value {
		return op.Scale(in[0], float64(a.Factor))
	}),
	"shift": of(1, func(_ *Builder, in []*graph.Value, a struct {
		Offset real `json:"offset"`
	}) *graph.Value {
		return op.Shift(in[0], float64(a.Offset))
	}),
	"softcap": of(1, func(_ *Builder, in []*graph.Value, a struct {
		Cap real `json:"cap"`
	}) *graph.Value {
		return op.Softcap(in[0], float64(a.Cap))
	}),
	"clamp": of(1, func(_ *Builder, in []*graph.Value, a struct {
		Low  real `json:"low"`
		High real `json:"high"`
	}) *graph.Value {
		return op.Clamp(in[0], float64(a.Low), float64(a.High))
	}),
	"cast": of(1, func(_ *Builder, in []*graph.Value, a struct {
		To dtype `json:"to"`
	}) *graph.Value {
		return op.Cast(in[0], graph.DType(a.To))
	}),
	"reshape":   shaped(op.Reshape),
	"broadcast": shaped(op.Broadcast),
	"permute": of(1, func(_ *Builder, in []*graph.Value, a struct {
		Axes []int `json:"axes"`
	}) *graph.Value {
		return op.Permute(in[0], a.Axes...)
	}),
	"slice": of(1, func(_ *Builder, in []*graph.Value, a struct {
		Axis  int `json:"axis"`
		Start int `json:"start"`
		Limit int `json:"limit"`
	}) *graph.Value {
		return op.Slice(in[0], a.Axis, a.Start, a.Limit)
	}),
	"pad": of(1, func(_ *Builder, in []*graph.Value, a struct {
		Axis  int  `json:"axis"`
		Low   int  `json:"low"`
		High  int  `json:"high"`
		Value real `json:"value"`
	}) *graph.Value {
		return op.Pad(in[0], a.Axis, a.Low, a.High, float64(a.Value))
	}),
	"concat": upTo(1, MaxInputs, func(_ *Builder, in []*graph.Value, a struct {
		Axis int `json:"axis"`
	}) []*graph.Value {
		return []*graph.Value{op.Concat(a.Axis, in...)}
	}),
	"matmul": of(2, func(_ *Builder, in []*graph.Value, a struct {
		TransA bool `json:"trans_a,omitempty"`
		TransB bool `json:"trans_b,omitempty"`
	}) *graph.Value {
		return op.MatMul(in[0], in[1], a.TransA, a.TransB)
	}),
	"top_k": upTo(1, 1, func(_ *Builder, in []*graph.Value, a struct {
		K int `json:"k"`
	}) []*graph.Value {
		values, ids := op.TopK(in[0], a.K)
		return []*graph.Value{values, ids}
	}),
	"group_rows": upTo(1, 1, func(_ *Builder, in []*graph.Value, a struct {
		Experts int `json:"experts"`
	}) []*graph.Value {
		order, place, offsets := op.GroupRows(in[0], a.Experts)
		return []*graph.Value{order, place, offsets}
	}),
	"take": of(3, func(_ *Builder, in []*graph.Value, _ none) *graph.Value { return op.Take(in[0], in[1], in[2]) }),
	"grouped_matmul": of(3, func(_ *Builder, in []*graph.Value, a struct {
		TransB bool `json:"trans_b,omitempty"`
	}) *graph.Value {
		return op.GroupedMatMul(in[0], in[1], in[2], a.TransB)
	}),
	"full": of(0, func(b *Builder, _ []*graph.Value, a struct {
		Value real  `json:"value"`
		DType dtype `json:"dtype,omitempty"`
		Shape []int `json:"shape,omitempty"`
	}) *graph.Value {
		return op.Full(b.b, graph.DType(a.DType), float64(a.Value), a.Shape...)
	}),
	"iota": of(0, func(b *Builder, _ []*graph.Value, a struct {
		DType dtype `json:"dtype,omitempty"`
		Axis  int   `json:"axis,omitempty"`
		Shape []int `json:"shape"`
	}) *graph.Value {
		return op.Iota(b.b, graph.DType(a.DType), a.Axis, a.Shape...)
	}),
	"constant": upTo(0, 0, func(b *Builder, _ []*graph.Value, a constantAttributes) []*graph.Value {
		return []*graph.Value{b.constant(a)}
	}),
	"cross_entropy": upTo(2, 3, func(_ *Builder, in []*graph.Value, a struct {
		Ignore *uint32 `json:"ignore,omitempty"` // default: none
		ZLoss  real    `json:"z_loss,omitempty"`
	}) []*graph.Value {
		o := op.CrossEntropyOptions{Ignore: -1, ZLoss: float64(a.ZLoss)}
		if a.Ignore != nil {
			o.Ignore = int64(*a.Ignore)
		}
		if len(in) == 3 {
			o.Weights = in[2]
		}
		perToken, counted := op.CrossEntropy(in[0], in[1], o)
		return []*graph.Value{perToken, counted}
	}),
}

type none struct{}

func unary(f func(x *graph.Value) *graph.Value) kind {
	return of(1, func(_ *Builder, in []*graph.Value, _ none) *graph.Value { return f(in[0]) })
}

func binary(f func(x, y *graph.Value) *graph.Value) kind {
	return of(2, func(_ *Builder, in []*graph.Value, _ none) *graph.Value { return f(in[0], in[1]) })
}

func reduction(f func(x *graph.Value, axes []int, keep bool) *graph.Value) kind {
	return of(1, func(_ *Builder, in []*graph.Value, a struct {
		Axes []int `json:"axes,omitempty"` // default: all
		Keep bool  `json:"keep,omitempty"`
	}) *graph.Value {
		return f(in[0], a.Axes, a.Keep)
	})
}

func shaped(f func(x *graph.Value, shape ...int) *graph.Value) kind {
	return of(1, func(_ *Builder, in []*graph.Value, a struct {
		Shape []int `json:"shape"`
	}) *graph.Value {
		return f(in[0], a.Shape...)
	})
}

// of returns an op with n inputs and one result. The fields of A are its attributes; see decode.
func of[A any](n int, f func(b *Builder, in []*graph.Value, a A) *graph.Value) kind {
	return upTo(n, n, func(b *Builder, in []*graph.Value, a A) []*graph.Value { return []*graph.Value{f(b, in, a)} })
}

func upTo[A any](least, most int, f func(b *Builder, in []*graph.Value, a A) []*graph.Value) kind {
	return kind{least: least, most: most, make: func(b *Builder, in []*graph.Value, attributes []byte) ([]*graph.Value, error) {
		var a A
		if err := decode(attributes, &a); err != nil {
			return nil, err
		}
		return f(b, in, a), nil
	}}
}
