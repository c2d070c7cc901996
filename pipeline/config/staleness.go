package config

import (
	"strconv"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"go.yaml.in/yaml/v3"
)

// StaleMicrobatches is a number of microbatches of each batch and replica, or StaleAuto or StaleAll.
type StaleMicrobatches int

// What StaleMicrobatches may be besides a number of at least 0.
const (
	StaleAuto StaleMicrobatches = -1 - iota // as few as cost nothing: stages − 1, and the depth. On one stage all
	StaleAll
)

// String is the text of the value in YAML.
func (s StaleMicrobatches) String() string {
	switch s {
	case StaleAuto:
		return "auto"
	case StaleAll:
		return "all"
	}
	return strconv.Itoa(int(s))
}

// DecodeYAML accepts a number of at least 0 and the words.
func (s *StaleMicrobatches) DecodeYAML(d *strictyaml.Document, n *yaml.Node, key string) error {
	var number int
	switch {
	case n.Value == StaleAuto.String():
		*s = StaleAuto
	case n.Value == StaleAll.String():
		*s = StaleAll
	case n.ShortTag() == "!!int" && n.Decode(&number) == nil && number >= 0:
		*s = StaleMicrobatches(number)
	default:
		return d.Errorf(n, key, "found %s, expected auto, all or a number of microbatches", strictyaml.Describe(n))
	}
	return nil
}

// MarshalYAML writes a number as such.
func (s StaleMicrobatches) MarshalYAML() (any, error) {
	if s < 0 {
		return s.String(), nil
	}
	return int(s), nil
}

// Stale is how many microbatches of each batch and replica read weights that lack the update of the batch before.
func (c Config) Stale() int {
	p, all := c.Pipeline, c.MicrobatchesPerReplica()
	switch s := p.StaleMicrobatches; {
	case p.Delay == 0:
		return 0
	case s == StaleAll, s == StaleAuto && p.Stages == 1:
		return all
	case s == StaleAuto:
		return p.leastStale()
	default:
		return int(s)
	}
}

// scheduledStale is the option Stale of the schedule: 0 for schedules without delay, even if pipeline.delay is 1.
// Validation reports such a delay later.
func (c Config) scheduledStale() int {
	if f, _ := schedule.Find(c.Pipeline.Schedule); f.Delay == 0 {
		return 0
	}
	return c.Stale()
}

// Staleness is the mean age of gradients in steps: the share of the microbatches that is stale.
func (c Config) Staleness() float64 {
	if c.Pipeline.Delay == 0 {
		return 0
	}
	return float64(c.Stale()) / float64(c.MicrobatchesPerReplica())
}

// KeepStale is the config with which a run continues from a checkpoint of a run with the config saved. If
// stale_microbatches is auto, as many microbatches stay stale. It returns an error if the stages and the depth of c
// need more.
func (c Config) KeepStale(saved Config) (Config, error) {
	if c.Pipeline.StaleMicrobatches != StaleAuto || c.Pipeline.Delay == 0 || saved.Pipeline.Delay == 0 ||
		c.MicrobatchesPerReplica() != saved.MicrobatchesPerReplica() {
		return c, nil
	}
	n := saved.Stale()
	if n < c.Pipeline.Stages-1 {
		return c, Invalid("pipeline.stages", c.Pipeline.Stages,
			"at most %d: the saved run has %d of %d microbatches stale, and %d stages need %d",
			n+1, n, c.MicrobatchesPerReplica(), c.Pipeline.Stages, c.Pipeline.Stages-1)
	}
	if n < c.Pipeline.leastStale() {
		return c, Invalid("pipeline.depth", c.Pipeline.Depth,
			"at most %d: the saved run has %d of %d microbatches stale, and %d stages need %d and the depth",
			n-(c.Pipeline.Stages-1), n, c.MicrobatchesPerReplica(), c.Pipeline.Stages, c.Pipeline.Stages-1)
	}
	if n != c.Stale() {
		c.Pipeline.StaleMicrobatches = StaleMicrobatches(n)
	}
	return c, nil
}

// PartlyStale reports whether some microbatches are stale and others are not. Evaluations read the newest weights then.
func (c Config) PartlyStale() bool {
	return c.Pipeline.Delay == 1 && c.Stale() < c.MicrobatchesPerReplica()
}

// atDepth names the depth in an error; it is empty for 0.
func (p Pipeline) atDepth() string {
	if p.Depth.Number() == 0 {
		return ""
	}
	return " at pipeline.depth " + string(p.Depth)
}

// completeStaleness takes the number of a schedule file, and sets no delay on one stage without a stale microbatch.
func (p *Pipeline) completeStaleness() {
	if p.HasScheduleFile() && p.StaleMicrobatches == StaleAuto {
		if s, err := schedule.Read(p.Schedule); err == nil { // validation reports the error
			p.StaleMicrobatches = StaleMicrobatches(s.Stale)
		}
	}
	if p.Stages == 1 && p.StaleMicrobatches == 0 {
		p.Delay = 0
	}
}

// completeSavedStaleness completes a config that was saved before stale_microbatches existed: all microbatches were
// stale.
func (p *Pipeline) completeSavedStaleness(d *strictyaml.Document) {
	if p.Delay == 1 && !d.Given("pipeline.stale_microbatches") {
		p.StaleMicrobatches = StaleAll
	}
}

// validateStaleness checks the number of stale microbatches, unless a schedule file or auto decides it.
func (c Config) validateStaleness() error {
	p, found := c.Pipeline, c.Pipeline.StaleMicrobatches
	if found == StaleAuto || p.HasScheduleFile() {
		return nil
	}
	const key = "pipeline.stale_microbatches"
	if p.Delay == 0 {
		if found == 0 {
			return nil
		}
		return Invalid(key, found, "auto: without pipeline.delay no microbatch is stale")
	}
	least, most := p.leastStale(), c.MicrobatchesPerReplica()
	switch n := c.Stale(); {
	case most <= least: // the schedule reports too few microbatches
		return nil
	case n > most:
		return Invalid(key, found, "%d to %d, auto or all: a replica's batch has %d microbatches", least, most, most)
	case n < least:
		return Invalid(key, found, "%d to %d, auto or all: of the %d microbatches of a replica's batch, %d are on their way through %d stages%s "+
			"when the update of the batch before is done", least, most, most, least, p.Stages, p.atDepth())
	}
	return nil
}
