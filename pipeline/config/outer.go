package config

import (
	"github.com/gpupipe/gpupipe/internal/fielderror"
	"github.com/gpupipe/gpupipe/optim/outer"
)

// Outer is how replicas that train on their own exchange what they have learned. It is the section pipeline.outer.
type Outer struct {
	LR         float64 `yaml:"lr" help:"Learning rate of the outer optimizer; 1 with momentum 0 is the plain average of the replicas."`
	Momentum   float64 `yaml:"momentum" help:"Nesterov momentum of the outer optimizer."`
	Wire       string  `yaml:"wire" help:"Format of exchanges: f32 is exact. In the others what rounding lacks is part of the next exchange."`
	Late       int     `yaml:"late" help:"Steps from sending weights until their exchange counts, at most pipeline.local_steps. Replicas go on meanwhile."`
	Correction string  `yaml:"correction" help:"Correction of late exchanges."`
}

func defaultOuter() Outer {
	return Outer{LR: 0.7, Momentum: 0.6, Wire: outer.FormatNames()[0], Correction: outer.CorrectionNames()[0]}
}

// Independent reports whether replicas train on their own and exchange weights only every pipeline.local_steps.
func (p Pipeline) Independent() bool { return p.LocalSteps > 0 }

// SyncReplicas is the number of replicas that average the gradients of each batch.
func (p Pipeline) SyncReplicas() int {
	if p.Independent() {
		return 1
	}
	return p.Replicas
}

// OfReplica is the config of one of the replicas that train on their own: with its share of each batch.
func (c Config) OfReplica() Config {
	n := c.Pipeline.Replicas
	c.Train.BatchSize, c.Train.Microbatches = c.Train.BatchSize/n, c.Train.Microbatches/n
	c.Pipeline.Replicas, c.Pipeline.LocalSteps = 1, 0
	return c
}

// OuterOptimizer is the outer optimizer of replicas that train on their own.
func (c Config) OuterOptimizer() outer.Config {
	p := c.Pipeline
	return outer.Config{LR: p.Outer.LR, Momentum: p.Outer.Momentum, Format: p.Outer.Wire, Correction: p.Outer.Correction,
		Lateness: float64(p.Outer.Late) / float64(max(1, p.LocalSteps)), Seed: c.Init.Seed}
}

// validateOuter checks the exchanges of replicas, and refuses what replicas that train on their own cannot have.
func (c Config) validateOuter() error {
	const key = "pipeline.local_steps"
	p := c.Pipeline
	if p.LocalSteps < 0 || p.LocalSteps > 1<<20 {
		return Invalid(key, p.LocalSteps, "an integer from 0 to %d", 1<<20)
	}
	if err := oneOf("pipeline.outer.wire", p.Outer.Wire); err != nil {
		return err
	}
	if err := oneOf("pipeline.outer.correction", p.Outer.Correction); err != nil {
		return err
	}
	if p.Outer.Late < 0 || p.Outer.Late > p.LocalSteps {
		return Invalid("pipeline.outer.late", p.Outer.Late, "an integer from 0 to %s (%d)", key, p.LocalSteps)
	}
	if err := c.OuterOptimizer().Check(); err != nil || !p.Independent() {
		return fielderror.In("pipeline.outer", err)
	}
	if c.Train.Nonfinite != Stop {
		return Invalid(key, p.LocalSteps, "0 with train.nonfinite %s", c.Train.Nonfinite)
	}
	return nil
}
