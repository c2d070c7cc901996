package outer

import (
	"slices"
	"strings"

	"github.com/gpupipe/gpupipe/internal/fielderror"
)

// BlockSize is the number of elements that share a scale in messages.
const BlockSize = 256

// Config is the outer optimizer and how its messages are made.
type Config struct {
	LR         float64 // η
	Momentum   float64 // μ, of Nesterov
	Format     string  // of messages, of the table Formats
	Correction string  // of the table Corrections
	Lateness   float64 // the share of a period that an exchange takes, from 0 to 1
	Seed       uint64  // of the rounding of messages
}

// Check returns a *fielderror.Error for the first value that is out of range.
func (c Config) Check() error {
	switch {
	case !(c.LR > 0 && c.LR <= 10):
		return fielderror.New("lr", c.LR, "a number above 0 and at most 10")
	case !(c.Momentum >= 0 && c.Momentum < 1):
		return fielderror.New("momentum", c.Momentum, "a number of at least 0 and below 1")
	case !slices.Contains(FormatNames(), c.Format):
		return fielderror.New("wire", c.Format, "one of %s", strings.Join(FormatNames(), ", "))
	case !slices.Contains(CorrectionNames(), c.Correction):
		return fielderror.New("correction", c.Correction, "one of %s", strings.Join(CorrectionNames(), ", "))
	case !(c.Lateness >= 0 && c.Lateness <= 1):
		return fielderror.New("lateness", c.Lateness, "a number from 0 to 1")
	}
	return nil
}

// Hyperparameters is the input HyperparametersInput of Step, for the mean of so many replicas: η, μ, the a of the
// correction, and the number of replicas.
func (c Config) Hyperparameters(replicas int) []float32 {
	return []float32{float32(c.LR), float32(c.Momentum), float32(c.correction().ahead(c, replicas)), float32(replicas)}
}

// Share is the input ShareInput of Send: how much of its own message a replica applies at once.
func (c Config) Share(replicas int) []float32 {
	return []float32{float32(c.correction().share(c, replicas))}
}

// Kept is the input KeptInput of Land: the share of a replica's own steps since it sent that remain.
func (c Config) Kept() []float32 { return []float32{float32(c.correction().kept(c))} }

// Estimates reports whether replicas go on from an estimate of the base, which Send computes, instead of from their
// weights.
func (c Config) Estimates() bool { return c.correction().estimates && c.Lateness > 0 }
