package train

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/inference/tasks"
	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// Report receives what happens during a run, in order, from one goroutine.
type Report interface {
	// Start reports the run that is about to begin, once, before the first step.
	Start(Start)
	// Step reports one step, a step late.
	Step(Progress)
	// Reading reports how many bytes of the data were read.
	Reading(done, total int64)
	// Measuring reports which program is timed on which device, to decide where the model is cut.
	Measuring(device, what string)
	// Note is a message for the user.
	Note(format string, args ...any)
}

// Start is what a run prints before it begins.
type Start struct {
	Dir        string            `json:"dir"`     // of the run
	Config     string            `json:"config"`  // as YAML, all defaults written out
	Changed    []string          `json:"changed"` // its values that differ from the defaults, as "key: value"
	Ranks      []engine.RankPlan `json:"ranks"`   // the pipeline's stages on their devices
	Parameters int64             `json:"parameters"`
	Active     int64             `json:"active_parameters"`   // the parameters that a token uses
	Precision  string            `json:"precision,omitempty"` // how devices compute, if not in f32
	Optimizer  string            `json:"optimizer"`           // which parameters are under which
	Data       map[string]int64  `json:"data"`                // tokens by split; for training, of FirstFiles
	FirstFiles int               `json:"first_files,omitempty"`
	Files      int               `json:"files,omitempty"` // of a stream, which begins with FirstFiles; 0: all are read
	FirstStep  int               `json:"first_step"`
	Steps      int               `json:"steps"`
}

// Progress is one step's measurements. Steps count from 1: step s took batch s−1, and its loss and gradient norm are at
// the weights before its update; ValLoss is at the weights after it.
type Progress struct {
	Step   int   `json:"step"`
	Steps  int   `json:"steps"`
	Tokens int64 `json:"tokens"` // trained on so far, without padding
	Update
	Evaluation
	Left time.Duration `json:"left_ns"`
	// Routing is what the routers of mixtures of experts did, by layer.
	Routing []engine.Routing `json:"routing,omitempty"`
	// ReplicaLosses are the losses of replicas that train on their own, by number; NaN: it is away. Loss is the mean of
	// the others.
	ReplicaLosses []metrics.Number `json:"replica_losses,omitempty"`
}

// Update is the measurements of a step's batch and update.
type Update struct {
	Loss         float64 `json:"loss"` // nats per token
	LR           float64 `json:"lr"`
	GradNorm     float64 `json:"grad_norm"` // before clipping
	TokensPerSec float64 `json:"tokens_per_s"`
	Staleness    float64 `json:"staleness"`            // mean age of the gradients, in steps
	LossScale    float64 `json:"loss_scale,omitempty"` // of f16
	Skipped      bool    `json:"skipped,omitempty"`    // the loss or the gradient was not finite
}

// Evaluation is the measurements of the weights after a step. It has a validation loss if there is a validation split.
type Evaluation struct {
	ValLoss     *float64       `json:"val_loss,omitempty"`          // nats per token
	BitsPerByte *float64       `json:"val_bits_per_byte,omitempty"` // of the validation split; nil if its tokens have no text, too
	Tasks       []tasks.Result `json:"tasks,omitempty"`             // of train.eval_tasks
}

// values are the measurements by their names in metrics.jsonl.
func (p Progress) values() []metrics.Value {
	values := []metrics.Value{{Name: "tokens", Value: float64(p.Tokens)}, {Name: "loss", Value: p.Loss}, {Name: "lr", Value: p.LR},
		{Name: "grad_norm", Value: p.GradNorm}, {Name: "tokens_per_s", Value: p.TokensPerSec}, {Name: "staleness", Value: p.Staleness}}
	if p.LossScale > 0 {
		values = append(values, metrics.Value{Name: "loss_scale", Value: p.LossScale})
	}
	values = append(values, p.Evaluation.values()...)
	if p.Skipped {
		values = append(values, metrics.Value{Name: "skipped", Value: 1})
	}
	for _, r := range p.Routing {
		values = append(values, routingValues(r)...)
	}
	for i, loss := range p.ReplicaLosses {
		if math.IsNaN(float64(loss)) {
			continue
		}
		values = append(values, metrics.Value{Name: fmt.Sprintf("replicas.%d/loss", i), Value: float64(loss)})
	}
	return values
}

// peakName is the name, in metrics.jsonl, of the largest load of an expert of a layer over the mean load.
func peakName(layer int) string { return fmt.Sprintf("layers.%d/load_max", layer) }

// loadsName is the name, in experts.jsonl, of the loads of a layer's experts.
func loadsName(layer int) string { return fmt.Sprintf("layers.%d/loads", layer) }

// routingValues are the measurements of a layer's router by their names in metrics.jsonl.
func routingValues(r engine.Routing) []metrics.Value {
	values := []metrics.Value{{Name: peakName(r.Layer), Value: r.Peak()}}
	for _, v := range []metrics.Value{{Name: "idle_experts", Value: float64(r.Idle())}, {Name: "router_entropy", Value: r.Entropy},
		{Name: "aux_loss", Value: r.Aux}, {Name: "z_loss", Value: r.Z}, {Name: "bias_range", Value: r.BiasMax - r.BiasMin}} {
		v.Name = fmt.Sprintf("layers.%d/%s", r.Layer, v.Name)
		values = append(values, v)
	}
	return values
}

// MarshalJSON writes numbers that are not finite, which JSON does not have, as metrics.jsonl does.
func (p Progress) MarshalJSON() ([]byte, error) {
	type plain Progress
	var routing []routingJSON
	for _, r := range p.Routing {
		routing = append(routing, routingJSON{r.Layer, r.Load, metrics.Number(r.Entropy), metrics.Number(r.Aux), metrics.Number(r.Z),
			metrics.Number(r.BiasMin), metrics.Number(r.BiasMax)})
	}
	return json.Marshal(struct {
		plain
		Loss     metrics.Number `json:"loss"`
		GradNorm metrics.Number `json:"grad_norm"`
		Routing  []routingJSON  `json:"routing,omitempty"`
	}{plain(p), metrics.Number(p.Loss), metrics.Number(p.GradNorm), routing})
}

// routingJSON is an engine.Routing in JSON.
type routingJSON struct {
	Layer   int            `json:"layer"`
	Loads   []float64      `json:"loads"`
	Entropy metrics.Number `json:"entropy"`
	Aux     metrics.Number `json:"aux_loss"`
	Z       metrics.Number `json:"z_loss"`
	BiasMin metrics.Number `json:"bias_min"`
	BiasMax metrics.Number `json:"bias_max"`
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (p *Progress) UnmarshalJSON(b []byte) error {
	type plain Progress
	x := struct {
		*plain
		Loss     metrics.Number `json:"loss"`
		GradNorm metrics.Number `json:"grad_norm"`
		Routing  []routingJSON  `json:"routing"`
	}{plain: (*plain)(p)}
	err := json.Unmarshal(b, &x)
	p.Loss, p.GradNorm, p.Routing = float64(x.Loss), float64(x.GradNorm), nil
	for _, r := range x.Routing {
		p.Routing = append(p.Routing, engine.Routing{Layer: r.Layer, Load: r.Loads, Entropy: float64(r.Entropy), Aux: float64(r.Aux),
			Z: float64(r.Z), BiasMin: float64(r.BiasMin), BiasMax: float64(r.BiasMax)})
	}
	return err
}

// Silent reports nothing.
type Silent struct{}

func (Silent) Start(Start)              {}
func (Silent) Step(Progress)            {}
func (Silent) Reading(int64, int64)     {}
func (Silent) Measuring(string, string) {}
func (Silent) Note(string, ...any)      {}
