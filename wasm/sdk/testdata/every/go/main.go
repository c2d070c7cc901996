//go:build wasip1

// Every hook, each of which does a little with all that it is given. TestEveryHookInAllLanguages says what.
package main

import (
	"encoding/binary"
	"strconv"

	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/buildloss"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/buildmodel"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/learningrate"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/lossgrad"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/lossscalars"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/mapbatch"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/mapdocument"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/onmetrics"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/state"
	"github.com/gpupipe/gpupipe/wasm/sdk/go/gpupipe/tokenweights"
)

var (
	calls uint32
	scale float64
	loud  bool
	name  string
)

func init() {
	gpupipe.Open(func() {
		c := gpupipe.Config()
		scale, loud, name = c.Number("scale", 2), c.True("loud"), c.Text("name", "no one")
		gpupipe.Log(name)
	})
	state.Use(func() []byte { return binary.LittleEndian.AppendUint32(nil, calls) }, func(b []byte) { calls = binary.LittleEndian.Uint32(b) })
	mapdocument.Use(func(text string, keep func(string)) {
		keep(text)
		if loud {
			keep(name)
		}
	})
	mapbatch.Use(mapBatch)
	tokenweights.Use(func(b *gpupipe.Batch) {
		for i := range b.Weights {
			b.Weights[i] *= float32(scale*float64(b.Step+b.Steps) + float64(b.Tokens[i]) - float64(b.Targets[i]))
		}
	})
	learningrate.Use(func(step, steps int64, base float64) float64 { return base*scale + float64(step)/float64(steps) })
	onmetrics.Use(func(metrics gpupipe.Object) bool { return metrics.Number("loss", 0) > scale })
	lossscalars.Use(func(step, steps int64, scalars []float32) {
		scalars[0], scalars[1] = float32(step), float32(float64(step)/float64(steps))
	})
	lossgrad.Use(func(s *lossgrad.Sample) {
		for i, target := range s.Targets {
			at := i*s.Vocab + int(target)
			s.Losses[i] = s.Logits[at]
			s.Gradient[at] = 1 / float32(s.Rows)
		}
	})
	buildloss.UseInputs(loss)
	buildmodel.Use(model)
}

func mapBatch(b *gpupipe.Batch) {
	for i := range b.Tokens {
		b.Tokens[i], b.Targets[i] = b.Targets[i], b.Tokens[i]
		b.Segments[i] = uint32(i/b.Length) + uint32(b.Step)
		b.Weights[i] += float32(b.Steps)
		if len(b.Aligned) > 0 {
			a := &b.Aligned[0]
			b.Weights[i] += gpupipe.Elements[float32](a)[i*int(a.Dims()[2])]
		}
	}
	calls++
}

func loss() gpupipe.Value {
	logits, targets := gpupipe.Input("logits"), gpupipe.Input("targets")
	nll := logits.CrossEntropy(targets)
	far := gpupipe.Input("hidden").Square().Mean(false, -1)
	less := nll.Less(gpupipe.Number(1))
	hot := nll.Mul(gpupipe.Scalar("heat"))
	cold := nll.Div(gpupipe.Scalar("cold"))
	heated := gpupipe.Where(less, hot, cold)
	return heated.Sub(far).Shift(-0.5).Neg().Add(nll.Second().Scale(1e-3))
}

func model(tokens gpupipe.Value) gpupipe.Value {
	const vocab, heads, d = 256, 4, 64
	rows, length := tokens.Shape()[0], tokens.Shape()[1]
	x := gpupipe.Normal("embedding", 0.02, vocab, d).Embedding(tokens)
	for layer := range 2 {
		prefix := "layer." + strconv.Itoa(layer)
		gpupipe.Unit(prefix)
		h := x.RMSNorm(gpupipe.Ones(prefix+".norm", d), 1e-5)
		q := h.Linear(gpupipe.Normal(prefix+".q", 0.01, d, d)).Reshape(rows, length, heads, d/heads)
		k := q.Rope(10000)
		var a gpupipe.Value
		if layer > 0 {
			a = gpupipe.Attention(k, k, q)
		} else {
			a = gpupipe.Attention(k, k, q, gpupipe.Input("segments"))
		}
		x = x.Add(a.Reshape(rows, length, -1))
	}
	x = x.LayerNorm(gpupipe.Ones("norm", d), gpupipe.Zeros("bias", d), 0.1)
	x = x.Broadcast(2, rows, length, d).Slice(0, 1, 2).Permute(1, 0, 2, 3).Reshape(rows, length, -1)
	return x.Softmax().Linear(gpupipe.Normal("head", 0.02, vocab, d))
}

func main() {}
