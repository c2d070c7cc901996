package config

import (
	"strconv"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"go.yaml.in/yaml/v3"
)

// Depth is a number of microbatches, or DepthAuto.
type Depth string

// DepthAuto leaves the depth to the planner of several machines, which replaces it by a number. On one machine it is 0.
const DepthAuto Depth = "auto"

// DepthNumber is a depth of n microbatches.
func DepthNumber(n int) Depth { return Depth(strconv.Itoa(n)) }

// DecodeYAML accepts a number of at least 0 and auto.
func (k *Depth) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	var number int
	switch {
	case n.Value == string(DepthAuto):
		*k = DepthAuto
	case n.ShortTag() == "!!int" && n.Decode(&number) == nil && number >= 0:
		*k = DepthNumber(number)
	default:
		return d.Errorf(n, key, "found %s, expected auto or a number of microbatches", strictyaml.Describe(n))
	}
	return nil
}

// MarshalYAML writes a number as such.
func (k Depth) MarshalYAML() (any, error) { return numberOrText(string(k)), nil }

// numberOrText is the number that a text consists of, or the text.
func numberOrText(s string) any {
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	return s
}

// Number is the depth, 0 if it is auto.
func (k Depth) Number() int {
	if k == DepthAuto {
		return 0
	}
	n, err := strconv.Atoi(string(k))
	if err != nil {
		panic(err) // DecodeYAML accepts no other text
	}
	return n
}

// leastStale is the fewest microbatches of a batch that are stale: the microbatches that the first stage begins before
// the update of the batch before is possible.
func (p Pipeline) leastStale() int { return p.Stages - 1 + p.Depth.Number() }

// MostDepth is the largest depth that the config's schedule can have, with as many stale microbatches as the config
// sets, if it sets a number.
func (c Config) MostDepth() int {
	p := c.Pipeline
	f, _ := schedule.Find(p.Schedule)
	if !f.Deep || p.Stages == 1 {
		return p.Depth.Number() // the depth of a schedule file, or 0
	}
	most := c.MicrobatchesPerReplica() - p.Stages
	if p.Delay == 1 && p.StaleMicrobatches != StaleAuto {
		most = min(most, c.Stale()-(p.Stages-1))
	}
	return max(0, most)
}

// completeDepth takes the depth of a schedule file.
func (p *Pipeline) completeDepth() {
	if p.HasScheduleFile() && p.Depth == DepthAuto {
		if s, err := schedule.Read(p.Schedule); err == nil { // validation reports the error
			p.Depth = DepthNumber(s.Depth)
		}
	}
}

// validateDepth checks a depth that is set, unless a schedule file decides it.
func (c Config) validateDepth() error {
	const key = "pipeline.depth"
	p, found := c.Pipeline, c.Pipeline.Depth
	if found.Number() == 0 || p.HasScheduleFile() {
		return nil
	}
	f, _ := schedule.Find(p.Schedule)
	switch most := c.MicrobatchesPerReplica() - p.Stages; {
	case !f.Deep:
		return Invalid(key, found, "auto or 0: schedule %s has no depth", p.Schedule)
	case p.Stages == 1:
		return Invalid(key, found, "auto or 0: one stage waits for no other")
	case most >= 0 && found.Number() > most: // otherwise the schedule reports too few microbatches
		return Invalid(key, found, "auto or 0 to %d: a replica's batch has %d microbatches, of which %d stages need one each", most,
			c.MicrobatchesPerReplica(), p.Stages)
	}
	return nil
}
