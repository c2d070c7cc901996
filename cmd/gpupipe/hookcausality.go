package main

import (
	"errors"
	"math"
	"math/rand/v2"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/eval"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/wasm/graphhook"
	"github.com/gpupipe/gpupipe/wasm/hook"
)

// causality checks that the module's model is causal.
func (f *moduleFlags) causality(a *app, m *hook.Module) (v verdict, err error) {
	v.Hook = m.Hook
	w, err := model.NewWritten(f.Vocab, f.SeqLen, func(batch int) (*model.Draft, error) {
		return m.BuildModel(a.ctx, graphhook.Dims{Batch: batch, SeqLen: f.SeqLen, Vocab: f.Vocab})
	})
	if err == nil {
		err = w.Prepare(2) // the same model for more sequences
	}
	if err != nil {
		return v, err
	}
	if f.SeqLen < 2 || w.Count()*int64(f.SeqLen) > mostToTry {
		v.Found = "causality was not checked: choose a smaller --seq-len, --vocab or configuration"
		return v, nil
	}
	v.Found = "it is causal: no logits depend on later tokens"
	return v, checkCausal(w)
}

// mostToTry bounds the product of parameters and tokens of a model that the host computes, which takes some seconds.
const mostToTry = 1 << 32

// checkCausal compares the predictions of a model in the middle of two texts that differ only after that. Its weights
// differ from the initial ones, which may be zero.
func checkCausal(w *model.Written) error {
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
			return errors.New("it is not causal: later tokens change the logits of a token, so the model would learn to copy, not to predict")
		}
	}
	return nil
}
