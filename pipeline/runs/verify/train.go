package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/pipeline/checkpoint"
	"github.com/gpupipe/gpupipe/pipeline/checkpoint/safetensors"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/gpupipe/gpupipe/pipeline/train"
)

// trainer trains settings, each once. The kernels are the static choice: verify proves that placement changes nothing
// for given kernels. Kernels that a timing chose for so small a model would say nothing about the user's model, and
// would differ by chance.
type trainer struct {
	*lender
	openWorker train.OpenWorker
	dir        string
	batches    int
	runs       int
	known      map[string]*outcome // by the settings of a run
}

// outcome is the results of a run.
type outcome struct {
	tensors []tensor // weights, then what the optimizer keeps, with the second version of the weights
	records []metrics.Record
}

type tensor struct {
	safetensors.Tensor
	data []byte
}

func (t *trainer) text() string { return filepath.Join(t.dir, "text.txt") }

// writeText makes up a text that can be learned: words in random order.
func (t *trainer) writeText() error {
	rng := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("the of pipeline gradient and weights are one batch old when they come to the stage that is first")
	var b strings.Builder
	for range 2000 {
		b.WriteString(words[rng.IntN(len(words))] + " ")
	}
	return os.WriteFile(t.text(), []byte(b.String()), 0o666)
}

// clip is the largest norm of a gradient. The gradients of the first batches are larger.
const clip = 0.5

// microbatches sets their number in a batch. Each has three sequences, so that all settings have the same kernels.
func microbatches(n int) []string {
	return []string{fmt.Sprint("train.microbatches=", n), fmt.Sprint("train.batch_size=", 3*n)}
}

// config is a setting in full.
func (t *trainer) config(s setting, dir string) config.Config {
	c, err := config.Parse("verify", nil, append([]string{
		"model={vocab_size: 256, d_model: 32, n_layers: 4, n_heads: 4, n_kv_heads: 2, d_ff: 32, seq_len: 16}",
		fmt.Sprintf("data={train: [%q], val_fraction: 0}", t.text()),
		fmt.Sprintf("train={steps: %d, batch_size: 12, microbatches: 4, eval_every: 0, save_every: 0, grad_clip: %g}", t.batches, clip),
		"lr.warmup=3", "optimizer.adamw.lr=0.01", fmt.Sprintf("run.dir=%q", dir),
	}, s.set...))
	if err != nil {
		panic(fmt.Sprintf("verify: %s: %v", s.name, err)) // all settings are ours
	}
	if ranks := c.Pipeline.Stages * c.Pipeline.Replicas; len(s.devices) > 0 {
		c.Pipeline.Devices = s.devices[:min(ranks, len(s.devices))]
	}
	return c
}

// outcome trains a setting, if that has not been done.
func (t *trainer) outcome(ctx context.Context, s setting) (*outcome, error) {
	key := strings.Join(slices.Concat(s.set, s.devices), " ")
	if o, ok := t.known[key]; ok {
		return o, nil
	}
	dir := t.folder()
	if _, err := t.run(ctx, s, dir, train.Options{}); err != nil {
		return nil, err
	}
	o, err := read(dir)
	if err != nil {
		return nil, err
	}
	if t.known == nil {
		t.known = map[string]*outcome{}
	}
	t.known[key] = o
	return o, os.RemoveAll(dir)
}

// folder names one for a run of its own.
func (t *trainer) folder() string {
	t.runs++
	return filepath.Join(t.dir, fmt.Sprint("run-", t.runs))
}

// run trains a setting in a folder. After a failure devices are opened anew: what follows shall not suffer from it.
func (t *trainer) run(ctx context.Context, s setting, dir string, o train.Options) (train.Result, error) {
	o.Devices.Open, o.Devices.OpenWorker = t.opener(), t.openWorker
	res, err := train.Run(ctx, t.config(s, dir), o)
	if err != nil {
		return res, errors.Join(fmt.Errorf("%s: %w", s.name, err), t.close())
	}
	return res, nil
}

// read reads the results of a run.
func read(dir string) (*outcome, error) {
	c, problems, err := checkpoint.Latest(dir)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("%v", problems[0])
	}
	o := &outcome{}
	for _, open := range []func() (*safetensors.Reader, error){c.Model, c.Optimizer} {
		r, err := open()
		if err != nil {
			return nil, err
		}
		for _, x := range r.Tensors() {
			data, err := r.Bytes(x.Name)
			if err != nil {
				return nil, errors.Join(err, r.Close())
			}
			o.tensors = append(o.tensors, tensor{x, data})
		}
		if err := r.Close(); err != nil {
			return nil, err
		}
	}
	o.records, err = metrics.Read(filepath.Join(dir, "metrics.jsonl"))
	return o, err
}
