package model

import "github.com/gpupipe/gpupipe/graph"

// Training is the uncut graph that Stage's programs are parts of; what changes with the microbatch are its inputs.
func (c Config) Training(o StageOptions, accumulate bool) (*graph.Graph, error) {
	return training(c, o, func(b *graph.Builder) source { return b.Input }, accumulate)
}
