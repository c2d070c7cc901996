package hook

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/wasm"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/tetratelabs/wazero/api"
)

// BuildLoss has the module write a loss: see graphhook.BuildLoss. It is called once, and nothing of the module runs later, but for
// loss_scalars, which it must have if the loss asked for scalars.
func (m *Module) BuildLoss(ctx context.Context, in graphhook.Inputs) (*graphhook.Loss, error) {
	i, err := m.open(ctx)
	if err != nil {
		return nil, err
	}
	defer i.Close()
	loss, err := graphhook.BuildLoss(in, func(b *graphhook.Builder) (graphhook.Handle, error) {
		h, err := m.host.serving(i, b, func() (int32, error) { return i.Call(ctx, BuildLoss, -1) })
		if err == nil {
			err = i.CheckKeys()
		}
		return graphhook.Handle(h), err
	})
	if err == nil && len(loss.Scalars) > 0 && !m.Has(LossScalars) {
		err = fmt.Errorf("it asks for the scalar %q, but the module does not export %s, which gives their values", loss.Scalars[0], LossScalars)
	}
	var known *wasm.Error
	if err != nil && !errors.As(err, &known) {
		err = m.wrong(-1, err)
	}
	return loss, err
}

// LossGrad is what the module says of the losses of logits [rows × vocab] and of the gradient of their mean: its loss_grad, with
// which its build_loss can be checked.
func (m *Module) LossGrad(ctx context.Context, logits []float32, targets []uint32) (losses, gradient []float32, err error) {
	i, err := m.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer i.Close()
	rows := len(targets)
	losses, gradient = make([]float32, rows), make([]float32, len(logits))
	out, onLogits := wasm.Of(wasm.Out, losses), wasm.Of(wasm.Out, gradient, rows, len(logits)/rows)
	in := wasm.Of(wasm.In, logits, rows, len(logits)/rows)
	if _, err = i.Call(ctx, LossGrad, -1, in, wasm.Of(wasm.In, targets), out, onLogits); err != nil {
		return nil, nil, err
	}
	for n, a := range []*wasm.Array{out, onLogits} {
		if err := sameShape(a, [][]int{{rows}, in.Dims}[n]); err != nil {
			return nil, nil, m.wrongIn(LossGrad, -1, fmt.Errorf("%s: %w", [...]string{"losses", "gradient"}[n], err))
		}
	}
	return losses, gradient, nil
}

func sameShape(a *wasm.Array, want []int) error {
	if !slices.Equal(a.Dims, want) {
		return fmt.Errorf("the shape is %v, expected %v", a.Dims, want)
	}
	return nil
}

// Units of work that the host is charged for.
const (
	opWork   = 20_000 // an op, its shape rule included
	byteWork = 4      // a byte of attributes, or of text
)

// maxName bounds the names of ops and inputs.
const maxName = 256

const i32 = api.ValueTypeI32

// codes are the dtypes as modules know them: those of arrays.
var codes = map[graph.DType]wasm.DType{graph.F32: wasm.F32, graph.I32: wasm.I32, graph.U32: wasm.U32}

// graphImports are the functions with which a module writes a graph.
func (h *Host) graphImports() []wasm.Import {
	types := func(n int) []api.ValueType {
		ts := make([]api.ValueType, n)
		for i := range ts {
			ts[i] = i32
		}
		return ts
	}
	make := func(name string, params int, call func(b *graphhook.Builder, i *wasm.Instance, s []uint64) (uint32, error)) wasm.Import {
		return wasm.Import{Name: name, Params: types(params), Results: types(1), Call: func(i *wasm.Instance, s []uint64) error {
			b, err := served[*graphhook.Builder](h, i, BuildLoss+" and "+BuildModel)
			if err != nil {
				return err
			}
			r, err := call(b, i, s)
			s[0] = uint64(r)
			return err
		}}
	}
	return []wasm.Import{make("graph_input", 2, graphInput), make("graph_scalar", 2, graphScalar), make("graph_op", 6, graphOp),
		make("graph_shape", 3, graphShape), make("graph_dtype", 1, graphDType),
		make("graph_parameter", 6, graphParameter), make("graph_unit", 2, graphUnit)}
}

func readName(i *wasm.Instance, address, length uint64) (string, error) {
	if uint32(length) > maxName {
		return "", fmt.Errorf("a name of %d bytes, at most %d allowed", uint32(length), maxName)
	}
	b, err := i.Read(uint32(address), uint32(length))
	return string(b), err
}

// graphInput (name, length) → handle
func graphInput(b *graphhook.Builder, i *wasm.Instance, s []uint64) (uint32, error) {
	return graphSource(i, s, b.Input)
}

// graphScalar (name, length) → handle
func graphScalar(b *graphhook.Builder, i *wasm.Instance, s []uint64) (uint32, error) {
	return graphSource(i, s, b.Scalar)
}

func graphSource(i *wasm.Instance, s []uint64, get func(name string) (graphhook.Handle, error)) (uint32, error) {
	i.Charge(opWork)
	name, err := readName(i, s[0], s[1])
	if err != nil {
		return 0, err
	}
	h, err := get(name)
	return uint32(h), err
}

// graphOp (name, length, inputs, count, attributes, length) → handle
func graphOp(b *graphhook.Builder, i *wasm.Instance, s []uint64) (uint32, error) {
	name, err := readName(i, s[0], s[1])
	if err != nil {
		return 0, err
	}
	count, length := uint32(s[3]), uint32(s[5])
	if count > graphhook.MaxInputs {
		return 0, fmt.Errorf("%.64q: %d inputs, at most %d allowed", name, count, graphhook.MaxInputs)
	}
	i.Charge(opWork + byteWork*int64(length))
	raw, err := i.Read(uint32(s[2]), 4*count)
	if err != nil {
		return 0, err
	}
	inputs := make([]graphhook.Handle, count)
	for n := range inputs {
		inputs[n] = graphhook.Handle(binary.LittleEndian.Uint32(raw[4*n:]))
	}
	attributes, err := i.Read(uint32(s[4]), length)
	if err != nil {
		return 0, err
	}
	h, err := b.Op(name, inputs, attributes)
	return uint32(h), err
}

// graphShape (handle, dims, capacity) → rank; it stores the dims that there is room for
func graphShape(b *graphhook.Builder, i *wasm.Instance, s []uint64) (uint32, error) {
	t, err := b.Type(graphhook.Handle(uint32(s[0])))
	if err != nil {
		return 0, err
	}
	n := min(len(t.Shape), int(uint32(s[2])))
	dims, err := i.Read(uint32(s[1]), uint32(4*n))
	if err != nil {
		return 0, err
	}
	for d := range n {
		binary.LittleEndian.PutUint32(dims[4*d:], uint32(t.Shape[d]))
	}
	return uint32(len(t.Shape)), nil
}

// graphDType (handle) → dtype, as in arrays
func graphDType(b *graphhook.Builder, _ *wasm.Instance, s []uint64) (uint32, error) {
	t, err := b.Type(graphhook.Handle(uint32(s[0])))
	return uint32(codes[t.DType]), err
}
