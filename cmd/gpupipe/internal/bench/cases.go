package bench

import (
	"fmt"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/autodiff"
	"github.com/gpupipe/gpupipe/graph/op"
	"github.com/gpupipe/gpupipe/optim"
)

// Case is one computation to measure. Its results stay on the device: Build assigns them to variables.
type Case struct {
	Name    string
	Build   func(b *graph.Builder)
	Flops   float64              // of one run; 0: not relevant
	Bytes   float64              // that one run must read and write; 0: not relevant
	Product *Product             // of a single matrix product, which gonum computes too
	Below   int                  // bound of integer inputs; 0: 256
	Inputs  map[string][]float32 // inputs that must not be random
}

// Product is the shape of a matrix product, [M,K] × [K,N].
type Product struct{ M, K, N int }

// Cases returns the computations that training consists of.
func Cases() ([]Case, error) {
	var cs []Case
	for _, p := range []Product{{512, 512, 512}, {1024, 1024, 1024}, {384, 1536, 2048}, {1003, 100, 96}, {2048, 128, 352}} {
		cs = append(cs, product(p))
	}
	cs = append(cs, product16(graph.F16, Product{1024, 1024, 1024}), product16(graph.BF16, Product{1024, 1024, 1024}))
	cs = append(cs, batched(64, 128, 32, 128), attention(16, 128, 4, 4, 32, false), attention(16, 128, 4, 4, 32, true),
		attention(2, 512, 9, 3, 64, false), attention(2, 512, 9, 3, 64, true), crossEntropy(2048, 256),
		crossEntropy(256, 49152), rmsNorm(2048, 576))
	for _, o := range []struct {
		name   string
		matrix bool
	}{{"adamw", false}, {"muon", true}} {
		c, err := update(o.name, o.matrix, 4, 512, 512)
		if err != nil {
			return nil, err
		}
		cs = append(cs, c)
	}
	return cs, nil
}

// keep assigns a value to a variable, to which its kernel then writes.
func keep(b *graph.Builder, name string, v *graph.Value) { b.Assign(b.Variable(name, v.Type), v) }

func f32(b *graph.Builder, name string, shape ...int) *graph.Value {
	return b.Input(name, graph.T(graph.F32, shape...))
}

func product(p Product) Case {
	m, k, n := p.M, p.K, p.N
	return Case{
		Name: fmt.Sprintf("matmul %d×%d×%d", m, k, n), Flops: 2 * float64(m) * float64(k) * float64(n), Product: &p,
		Build: func(b *graph.Builder) { keep(b, "c", op.MatMul(f32(b, "a", m, k), f32(b, "b", k, n), false, false)) },
	}
}

// product16 is a product whose operands are 16-bit floats and whose result is f32.
func product16(d graph.DType, p Product) Case {
	return Case{
		Name: fmt.Sprintf("matmul %d×%d×%d %v", p.M, p.K, p.N, d), Flops: 2 * float64(p.M) * float64(p.K) * float64(p.N),
		Build: func(b *graph.Builder) {
			keep(b, "c", op.MatMul(b.Input("a", graph.T(d, p.M, p.K)), b.Input("b", graph.T(d, p.K, p.N)), false, false))
		},
	}
}

func batched(batch, m, k, n int) Case {
	return Case{
		Name: fmt.Sprintf("matmul %d of %d×%d×%d", batch, m, k, n), Flops: 2 * float64(batch) * float64(m) * float64(k) * float64(n),
		Build: func(b *graph.Builder) {
			keep(b, "c", op.MatMul(f32(b, "a", batch, m, k), f32(b, "b", batch, n, k), false, true))
		},
	}
}

// attention counts the causal half of the products: two forward, and five backward, which computes the scores again.
func attention(batch, seq, heads, kv, dim int, backward bool) Case {
	c := Case{Name: fmt.Sprintf("attention %d×%d×%d×%d", batch, seq, heads, dim)}
	if kv != heads {
		c.Name += fmt.Sprintf(" (%d kv)", kv)
	}
	products := 2.0
	if backward {
		c.Name += " fwd+bwd"
		products = 7
	}
	c.Flops = products * float64(batch*heads) * float64(seq) * float64(seq) * float64(dim)
	c.Build = func(b *graph.Builder) {
		q, k, v := f32(b, "q", batch, seq, heads, dim), f32(b, "k", batch, seq, kv, dim), f32(b, "v", batch, seq, kv, dim)
		y := op.Attention(q, k, v, nil)
		keep(b, "y", y)
		if backward {
			gradients(b, y, q, k, v)
		}
	}
	return c
}

// gradients keeps the gradients of y. The gradient of y itself is an input.
func gradients(b *graph.Builder, y *graph.Value, wrt ...*graph.Value) {
	for i, g := range autodiff.Gradients(y, b.Input("dy", y.Type), wrt...) {
		keep(b, fmt.Sprint("d", i), g)
	}
}

// crossEntropy reads the logits at least twice, and writes their gradient.
func crossEntropy(tokens, vocab int) Case {
	return Case{
		Name: fmt.Sprintf("cross-entropy %d×%d fwd+bwd", tokens, vocab), Below: vocab, Bytes: 4 * 3 * float64(tokens) * float64(vocab),
		Build: func(b *graph.Builder) {
			logits := f32(b, "logits", tokens, vocab)
			targets := b.Input("targets", graph.T(graph.U32, tokens))
			loss, _ := op.CrossEntropy(logits, targets, op.CrossEntropyOptions{Ignore: -1})
			keep(b, "loss", loss)
			gradients(b, loss, logits)
		},
	}
}

// rmsNorm reads x, writes y, reads x and dy, writes dx.
func rmsNorm(rows, cols int) Case {
	return Case{
		Name: fmt.Sprintf("rmsnorm %d×%d fwd+bwd", rows, cols), Bytes: 4 * 5 * float64(rows) * float64(cols),
		Build: func(b *graph.Builder) {
			x, w := f32(b, "x", rows, cols), f32(b, "w", cols)
			y := op.RMSNorm(x, w, 1e-5)
			keep(b, "y", y)
			gradients(b, y, x, w)
		},
	}
}

// update is an optimizer's whole update of n matrices with the norm of the gradients. It clips by the norm of the
// previous run, because both programs are one here. Of each element, the norm reads the gradient; AdamW reads the
// parameter, the gradient and two moments, and writes these but the gradient: eight transfers. Muon computes five
// Newton–Schulz steps of three products each, if the longer side is less than twice the shorter.
func update(name string, matrix bool, n, rows, cols int) (Case, error) {
	var params []optim.Param
	for i := range n {
		w := fmt.Sprint("w", i)
		params = append(params, optim.Param{Name: w, Type: graph.T(graph.F32, rows, cols), Gradient: "grad/" + w, Matrix: matrix,
			Decay: true})
	}
	c, err := optimizer(name)
	if err != nil {
		return Case{}, err
	}
	o, err := optim.New(c, params)
	if err != nil {
		return Case{}, err
	}
	elements := float64(n * rows * cols)
	update := Case{Name: fmt.Sprintf("%s %d of %d×%d", name, n, rows, cols), Bytes: 4 * 8 * elements,
		Inputs: map[string][]float32{optim.HyperparametersInput: o.Hyperparameters(0, false).Float32s()}}
	update.Build = func(b *graph.Builder) {
		shard := o.All()
		shard.AddNormSquares(b)
		shard.AddUpdate(b, 0)
	}
	if matrix {
		short := float64(min(rows, cols))
		update.Bytes, update.Flops = 0, 5*(2*2*short*elements+2*float64(n)*short*short*short)
	}
	return update, nil
}

// optimizer is the config of an optimizer with its default hyperparameters, clipping and a constant learning rate.
func optimizer(name string) (optim.Config, error) {
	a, err := optim.NewAlgorithm(name)
	return optim.Config{Algorithm: a, AdamW: *optim.DefaultRest(), WeightDecay: optim.DefaultWeightDecay, Clip: 1,
		Schedule: optim.Schedule{Name: "constant", Steps: 1000}}, err
}
