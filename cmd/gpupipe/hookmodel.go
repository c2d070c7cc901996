package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// tryModel has the module write a model for one sequence and for two, and looks whether it is causal.
func (f *moduleFlags) tryModel(a *app, m *hook.Module, long time.Duration) (v verdict, err error) {
	var last *model.Draft
	w, err := model.NewWritten(f.Vocab, f.SeqLen, func(batch int) (*model.Draft, error) {
		v.Micros, _, err = repeat(long, func(int) (err error) {
			last, err = m.BuildModel(a.ctx, graphhook.Dims{Batch: batch, SeqLen: f.SeqLen, Vocab: f.Vocab})
			return err
		})
		return last, err
	})
	if err == nil {
		err = w.Prepare(2)
	}
	if err != nil {
		return v, err
	}
	v.Found = fmt.Sprintf("a model of %s numbers in %d parameters and %d units: %s", grouped(w.Count()), len(last.Parameters), len(last.Units), shortened(last.Units))
	if f.SeqLen < 2 || w.Count()*int64(f.SeqLen) > mostToTry {
		v.Found += "; too large to try whether it is causal: take a smaller --seq-len, --vocab or configuration"
	} else if err := causal(w); err != nil {
		return v, err
	} else {
		v.Found += "; it is causal"
	}
	v.OK = true
	return v, nil
}

// mostToTry bounds parameters times tokens of what is computed on the host: some seconds.
const mostToTry = 1 << 32

// causal computes what a model predicts in the middle of two texts that differ after that only, with weights that are not as they start:
// those may be zero.
func causal(w *model.Written) error {
	g, err := w.Predict()
	if err != nil {
		return err
	}
	rng, vars := rand.New(rand.NewPCG(1, 1)), map[string]*graph.Tensor{}
	for _, p := range w.Parameters() {
		x := graph.NewTensor(p.Type)
		for i, start := range p.Initial(1) {
			x.Data[i] = float64(start) + 0.02*rng.NormFloat64()
		}
		vars[p.Name] = x
	}
	size := w.Size()
	tokens, position := graph.NewTensor(graph.T(graph.U32, 1, size.SeqLen)), graph.NewTensor(graph.T(graph.U32, 1))
	for i := range tokens.Data {
		tokens.Data[i] = float64(rng.IntN(size.VocabSize))
	}
	at := (size.SeqLen - 1) / 2
	position.Data[0] = float64(at)
	var logits [2][]float64
	for i := range logits {
		for j := at + 1; j < size.SeqLen; j++ {
			tokens.Data[j] = float64((int(tokens.Data[j]) + i) % size.VocabSize)
		}
		out, err := eval.Run(g, map[string]*graph.Tensor{model.TokensInput: tokens, model.PositionInput: position}, vars)
		if err != nil {
			return err
		}
		logits[i] = out[model.LogitsOutput].Data
	}
	for i, x := range logits[0] {
		if y := logits[1][i]; !(math.Abs(x-y) <= 1e-9*max(1, math.Abs(x))) {
			return errors.New("it is not causal: what comes after a token changes the logits of that token, from which the model would learn to copy, not to predict")
		}
	}
	return nil
}

// shortened names the first few and the last.
func shortened(names []string) string {
	if len(names) > 4 {
		names = []string{names[0], names[1], "…", names[len(names)-1]}
	}
	return strings.Join(names, ", ")
}
