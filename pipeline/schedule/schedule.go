// Package schedule says in which order the stages of a pipeline work: as text, a line a stage, of actions such as F0.1 (forward
// of microbatch 0 of batch 1). Generators write the computation, Communicate adds what stages tell each other, Validate checks
// a schedule, Simulate runs it on given costs. Nothing here touches a device.
package schedule

// Kind is what an action does.
type Kind uint8

const (
	// Computation, by microbatch and chunk.
	Forward    Kind = iota // F
	Backward               // B: both gradients
	InputGrad              // I: the gradient of the chunk's input, the first half of B
	WeightGrad             // W: the gradients of the chunk's weights, the second half of B
	Evaluate               // E: forward without a backward to come
	Update                 // U: of a batch: the optimizer's step on the line's own parameters
	// Communication, by microbatch and chunk. A chunk receives before it computes and sends afterwards.
	RecvForward  // RF: activations from the chunk before
	SendForward  // SF: activations to the chunk after
	RecvBackward // RB: their gradient from the chunk after
	SendBackward // SB: the input's gradient to the chunk before
	// Exchange, by batch, between the line's last backward of the batch and the batch's deadline; its place in a line is the
	// latest one: a stage does it as soon as it can.
	SendGrads   // SG: gradients of parameters of which the line holds a copy, to their owner
	RecvGrads   // RG: such gradients of the copies elsewhere
	Vote        // N: the squared norms of the line's gradients, and whether its loss is finite, to all owners
	SendWeights // SW: the line's own updated parameters to their copies elsewhere
	RecvWeights // RW: the copies that the line holds, from their owners
)

// Action is one thing that a stage does. Batch counts from the first batch of the schedule, Microbatch from the batch's first;
// Microbatch and Chunk are 0 where the kind has none.
type Action struct {
	Kind       Kind
	Microbatch int
	Batch      int
	Chunk      int // which of the line's parts of the model, 0 but in interleaved schedules
}

// Schedule is a line of actions for each stage. A model has Stages·Chunks parts; part c·Stages + s is chunk c of stage s.
type Schedule struct {
	Name         string
	Stages       int
	Chunks       int // a stage, at least 1
	Microbatches int // a batch
	Batches      int
	Delay        int    // 0: batch t reads the weights that batch t−1 left; 1: those that batch t−2 left; −1: as the lines have it
	Links        *Links // what Communicate added; nil where there is computation only
	Lines        [][]Action
}

// Parts is how many parts the model is cut into.
func (s *Schedule) Parts() int { return s.Stages * s.Chunks }

// part is which part of the model a chunk of a stage is.
func (s *Schedule) part(stage, chunk int) int { return chunk*s.Stages + stage }

// Links says which parameters have copies elsewhere.
type Links struct {
	Tied    bool // the last part holds a copy of the first part's embedding (no matter where one line holds both)
	Replica bool // this pipeline only holds copies: it is a replica of the one that owns the parameters
	Copied  bool // this pipeline owns the parameters and has such replicas
}
