package schedule

// Kind is what an action does.
type Kind uint8

const (
	// Computation, per microbatch and chunk.
	Forward    Kind = iota // F
	Backward               // B: both gradients
	InputGrad              // I: the gradient of the chunk's input, the first half of B
	WeightGrad             // W: the gradients of the chunk's weights, the second half of B
	Evaluate               // E: a forward without a backward
	Update                 // U: the optimizer's step on the stage's own parameters, once per batch
	// Communication, per microbatch and chunk. A chunk receives before it computes and sends afterwards.
	RecvForward  // RF: activations from the chunk before
	SendForward  // SF: activations to the chunk after
	RecvBackward // RB: their gradient from the chunk after
	SendBackward // SB: the input's gradient to the chunk before
	// Exchange, once per batch, between the stage's last backward of the batch and the batch's deadline. It stands at
	// the deadline in the action list; a stage does it as soon as it can.
	SendGrads   // SG: send the gradients of copied parameters to their owners
	RecvGrads   // RG: receive the gradients of this stage's parameters from their copies
	GradNorm    // N: compute the squared norms of the stage's gradients and check its loss, and all-gather them
	SendWeights // SW: send the stage's updated parameters to their copies
	RecvWeights // RW: receive updated copies from their owners
)

// Action is one step of a stage. Batch counts from the first batch of the schedule, Microbatch from the batch's first;
// Microbatch and Chunk are 0 where the kind has none.
type Action struct {
	Kind       Kind
	Microbatch int
	Batch      int
	Chunk      int // which of the stage's model chunks; 0 except in schedules with several
}

// Schedule is an action list for each stage. The model is cut into Stages·Chunks virtual stages; virtual stage c·Stages
// + s is chunk c of stage s.
type Schedule struct {
	Name         string
	Stages       int
	Chunks       int // model chunks per stage, at least 1
	Microbatches int // per batch
	Batches      int
	// Delay is 0 if batch t reads the weights that batch t−1 left. It is 1 if the stale microbatches of batch t read
	// the weights that batch t−2 left, and the others the weights that batch t−1 left. It is −1 if that differs by
	// stage.
	Delay   int
	Stale   int        // with Delay 1: how many microbatches are stale, the first of each batch; otherwise 0
	Depth   int        // how many microbatches more than the stages the first stage has in flight; 0: not known or none
	Copies  *Copies    // what Communicate added; nil in a schedule of computation only
	Actions [][]Action // by stage, in order
}

// isStale reports whether a microbatch reads weights that lack the update of the batch before.
func (s *Schedule) isStale(microbatch int) bool { return s.Delay == 1 && microbatch < s.Stale }

// reads is the batch whose update makes the weights that a microbatch reads, with a delay of 0 or 1. It is negative for
// the initial weights.
func (s *Schedule) reads(a Action) (updatedBy int) {
	if s.isStale(a.Microbatch) {
		return a.Batch - 2
	}
	return a.Batch - 1
}

// MeanStaleness is the mean over the microbatches of a batch of how many updates their weights lack. It is −1 if that
// differs by stage.
func (s *Schedule) MeanStaleness() float64 {
	if s.Delay <= 0 {
		return float64(s.Delay)
	}
	return float64(s.Stale) / float64(s.Microbatches)
}

// VirtualStages is the number of virtual stages that the model is cut into.
func (s *Schedule) VirtualStages() int { return s.Stages * s.Chunks }

// virtualStage is the number of the virtual stage that is a chunk of a stage.
func (s *Schedule) virtualStage(stage, chunk int) int { return chunk*s.Stages + stage }

// Copies describes which parameters have copies on other ranks.
type Copies struct {
	Tied    bool // the last virtual stage holds a copy of the embedding of the first; no effect if one stage holds both
	Replica bool // this pipeline only holds copies: it is a replica of the one that owns the parameters
	Copied  bool // this pipeline owns the parameters and has such replicas
}
