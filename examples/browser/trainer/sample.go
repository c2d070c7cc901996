package trainer

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/runtime/exec"
)

// sampler generates text with a copy of the model's weights.
type sampler struct {
	session *exec.Session
	fed     uint32 // positions so far
}

const decodeProgram = "decode"

// Sample continues a prompt by n bytes, within one context. A temperature of 0 chooses the most likely byte.
func (t *Trainer) Sample(ctx context.Context, prompt []byte, n int, temperature float64) ([]byte, error) {
	if err := t.takeWeights(); err != nil {
		return nil, err
	}
	if len(prompt) == 0 {
		prompt = []byte("\n")
	}
	rng := rand.New(rand.NewPCG(t.config.Seed, uint64(t.step)))
	var made []byte
	n = min(n, t.config.Model.SeqLen-1)
	pending := prompt[max(0, len(prompt)-(t.config.Model.SeqLen-n)):]
	for len(made) < n && ctx.Err() == nil {
		logits, err := t.sampler.feed(pending)
		if err != nil {
			return nil, err
		}
		made = append(made, draw(logits, temperature, rng))
		pending = made[len(made)-1:]
	}
	return made, ctx.Err()
}

// takeWeights copies the current weights to the sampler.
func (t *Trainer) takeWeights() error {
	if t.sampler == nil {
		g, err := t.config.Model.Decode()
		if err != nil {
			return err
		}
		p, err := exec.NewPlan(t.dev, map[string]*graph.Graph{decodeProgram: g}, exec.Options{})
		if err != nil {
			return err
		}
		s, err := p.Load()
		if err != nil {
			return err
		}
		t.sampler = &sampler{session: s}
	}
	t.sampler.fed = 0
	for _, p := range t.config.Model.Parameters() {
		read, err := t.engine.ReadWeights(p.Name, engine.Newest)
		if err != nil {
			return err
		}
		data, err := read.Wait()
		if err != nil {
			return err
		}
		if err := t.sampler.session.WriteVariable(p.Name, data); err != nil {
			return err
		}
	}
	return nil
}

// feed runs the model on bytes, and returns the logits of the next byte.
func (s *sampler) feed(text []byte) ([]float32, error) {
	for _, c := range text {
		for name, x := range map[string]uint32{model.TokensInput: uint32(c), model.PositionInput: s.fed} {
			if err := s.session.SetInput(decodeProgram, name, binary.LittleEndian.AppendUint32(nil, x)); err != nil {
				return nil, err
			}
		}
		if err := s.session.Run(decodeProgram); err != nil {
			return nil, err
		}
		s.fed++
	}
	read, err := s.session.Output(decodeProgram, model.LogitsOutput)
	if err != nil {
		return nil, err
	}
	data, err := read.Wait()
	return exec.ToF32(data), err
}

// draw samples a byte from the softmax of the logits over the temperature.
func draw(logits []float32, temperature float64, rng *rand.Rand) byte {
	best := 0
	for i, l := range logits {
		if l > logits[best] {
			best = i
		}
	}
	if temperature == 0 {
		return byte(best)
	}
	weights, sum := make([]float64, len(logits)), 0.0
	for i, l := range logits {
		weights[i] = math.Exp(float64(l-logits[best]) / temperature)
		sum += weights[i]
	}
	at := rng.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return byte(i)
		}
	}
	return byte(best)
}
