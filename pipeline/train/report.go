package train

import (
	"encoding/json"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// Report is told what happens during a run, in order, from one goroutine.
type Report interface {
	// Start tells what is about to run, once, before the first step.
	Start(Start)
	// Step tells of one step, a step late.
	Step(Progress)
	// Reading tells how much of the data's bytes were read.
	Reading(done, total int64)
	// Measuring tells which program is timed on which device, to decide where the model is cut.
	Measuring(device, what string)
	// Note is a message for the user.
	Note(format string, args ...any)
}

// Start is what a run prints before it begins.
type Start struct {
	Config     string            `json:"config"`  // as YAML, all defaults written out
	Changed    []string          `json:"changed"` // its values that differ from the defaults, as "key: value"
	Lines      []engine.RankPlan `json:"lines"`   // the pipeline's stages on their devices
	Parameters int64             `json:"parameters"`
	Precision  string            `json:"precision,omitempty"` // how devices compute, if not in f32
	Optimizer  string            `json:"optimizer"`           // which parameters are under which
	Data       map[string]int64  `json:"data"`                // tokens by split
	FirstStep  int               `json:"first_step"`
	Steps      int               `json:"steps"`
}

// Progress is one step's measurements. Steps count from 1: step s took batch s−1, and its loss and gradient norm are at the
// weights before its update; ValLoss is at the weights after it.
type Progress struct {
	Step         int           `json:"step"`
	Steps        int           `json:"steps"`
	Tokens       int64         `json:"tokens"` // trained on so far
	Loss         float64       `json:"loss"`   // nats per token
	LR           float64       `json:"lr"`
	GradNorm     float64       `json:"grad_norm"` // before clipping
	TokensPerSec float64       `json:"tokens_per_s"`
	Staleness    int           `json:"staleness"`
	LossScale    float64       `json:"loss_scale,omitempty"` // of f16
	Skipped      bool          `json:"skipped,omitempty"`    // the loss or the gradient was not finite
	ValLoss      *float64      `json:"val_loss,omitempty"`
	Left         time.Duration `json:"left_ns"`
}

// MarshalJSON gives numbers that are not finite, which JSON has no word for, the names that metrics.jsonl has for them.
func (p Progress) MarshalJSON() ([]byte, error) {
	type plain Progress
	return json.Marshal(struct {
		plain
		Loss     metrics.Number `json:"loss"`
		GradNorm metrics.Number `json:"grad_norm"`
	}{plain(p), metrics.Number(p.Loss), metrics.Number(p.GradNorm)})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (p *Progress) UnmarshalJSON(b []byte) error {
	type plain Progress
	x := struct {
		*plain
		Loss     metrics.Number `json:"loss"`
		GradNorm metrics.Number `json:"grad_norm"`
	}{plain: (*plain)(p)}
	err := json.Unmarshal(b, &x)
	p.Loss, p.GradNorm = float64(x.Loss), float64(x.GradNorm)
	return err
}

// Silent reports nothing.
type Silent struct{}

func (Silent) Start(Start)              {}
func (Silent) Step(Progress)            {}
func (Silent) Reading(int64, int64)     {}
func (Silent) Measuring(string, string) {}
func (Silent) Note(string, ...any)      {}
