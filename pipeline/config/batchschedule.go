package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"go.yaml.in/yaml/v3"
)

// BatchSchedule has the number of sequences in a batch from some steps on, by the number of steps before: {0: 64, 1000:
// 128} makes 1000 batches of 64 sequences, and larger ones after them.
type BatchSchedule map[int]int

const batchScheduleKey = "train.batch_schedule"

// DecodeYAML accepts a mapping of whole numbers.
func (b *BatchSchedule) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	const expected = "expected sizes of batches by the step from which on they are used, as in {0: 64, 1000: 128}"
	if n.Kind != yaml.MappingNode {
		return d.Errorf(n, key, "found %s, %s", strictyaml.Describe(n), expected)
	}
	*b = BatchSchedule{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		var step, size int
		name, value := n.Content[i], n.Content[i+1]
		if name.ShortTag() != "!!int" || name.Decode(&step) != nil || step < 0 || value.ShortTag() != "!!int" ||
			value.Decode(&size) != nil {
			return d.Errorf(name, key, "found %s: %s, %s", name.Value, strictyaml.Describe(value), expected)
		}
		if _, twice := (*b)[step]; twice {
			return d.Errorf(name, key, "step %d is given twice", step)
		}
		(*b)[step] = size
	}
	return nil
}

// MarshalYAML writes the steps in ascending order, on one line.
func (b BatchSchedule) MarshalYAML() (any, error) {
	n := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
	for _, step := range b.Steps() {
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(step)},
			&yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(b[step])})
	}
	return n, nil
}

// Steps are the steps from which on the sizes are used, in ascending order.
func (b BatchSchedule) Steps() []int { return slices.Sorted(maps.Keys(b)) }

// completeBatches makes train.batch_size the size of the first batches. A schedule of the command line replaces the
// train.batch_size of the file.
func (t *Train) completeBatches(d *strictyaml.Document) error {
	if len(t.BatchSchedule) == 0 {
		return nil
	}
	first, ok := t.BatchSchedule[0]
	switch {
	case !ok:
		t.BatchSchedule[0] = t.BatchSize
	case d.Given("train.batch_size") && t.BatchSize != first && !(d.Overridden(batchScheduleKey) && d.FromFile("train.batch_size")):
		return fmt.Errorf("%s: train.batch_size: found %d, expected %d, the first size of %s, or no such key", d.At("train.batch_size"),
			t.BatchSize, first, batchScheduleKey)
	default:
		t.BatchSize = first
	}
	return nil
}

// validateBatches checks the sizes of train.batch_schedule: each is a number of whole microbatches, which the pipeline
// takes.
func (c Config) validateBatches() error {
	rows := c.Rows()
	for _, step := range c.Train.BatchSchedule.Steps() {
		size := c.Train.BatchSchedule[step]
		if size < 1 || size > 1<<20 {
			return Invalid(batchScheduleKey, size, "from step %d on an integer from 1 to %d", step, 1<<20)
		}
		if size%rows != 0 {
			return Invalid(batchScheduleKey, size,
				"from step %d on a multiple of %d, the sequences of a microbatch (train.batch_size / train.microbatches), which stay as many", step, rows)
		}
		if err := c.At(step).validatePipeline(); err != nil {
			return Invalid(batchScheduleKey, size, "a size that %d microbatches of %d sequences allow from step %d on: %v", size/rows,
				rows, step, err)
		}
	}
	return nil
}

// At is the config with the size of the batches after a number of steps, and as many microbatches as it takes:
// microbatches keep their size. Without train.batch_schedule it is the config itself.
func (c Config) At(step int) Config {
	rows := c.Rows()
	for _, from := range c.Train.BatchSchedule.Steps() {
		if size := c.Train.BatchSchedule[from]; from <= step {
			c.Train.BatchSize, c.Train.Microbatches = size, size/rows
		}
	}
	return c
}

// Alone is the config at its current batch size, without train.batch_schedule.
func (c Config) Alone() Config {
	c.Train.BatchSchedule = nil
	return c
}

// NextBatchSize is the step after which the batches have another size for the next time, or 0.
func (c Config) NextBatchSize(step int) int {
	for _, from := range c.Train.BatchSchedule.Steps() {
		if from > step && c.At(from).Train.BatchSize != c.At(from-1).Train.BatchSize {
			return from
		}
	}
	return 0
}

// Sequences is how many sequences the steps from one to another take.
func (c Config) Sequences(from, to int) (n int64) {
	for from < to {
		until := to
		if next := c.NextBatchSize(from); next > 0 {
			until = min(to, next)
		}
		n += int64(until-from) * int64(c.At(from).Train.BatchSize)
		from = until
	}
	return n
}

// Largest is the config at its largest batches.
func (c Config) Largest() Config {
	largest := c
	for step := range c.Train.BatchSchedule {
		if at := c.At(step); at.Train.BatchSize > largest.Train.BatchSize {
			largest = at
		}
	}
	return largest
}
