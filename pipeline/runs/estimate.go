package runs

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"gonum.org/v1/gonum/stat"
)

// Estimate is a mean over n seeds with its standard error s/√n, where s² = Σ(x−mean)²/(n−1). The mean is infinite if a
// run diverged, and NaN if there is nothing to compare with. The error is NaN with one seed, or without a finite mean.
type Estimate struct {
	Mean, Err float64
}

// NewEstimate estimates the mean of a distribution from the samples xs.
func NewEstimate(xs []float64) Estimate {
	e := Estimate{stat.Mean(xs, nil), math.NaN()}
	if len(xs) > 1 && metrics.Finite(e.Mean) {
		e.Err = stat.StdErr(stat.StdDev(xs, nil), float64(len(xs)))
	}
	return e
}

// String is mean ± error with four decimals.
func (e Estimate) String() string { return e.format("%.4f") }

// Signed is String with a sign.
func (e Estimate) Signed() string { return e.format("%+.4f") }

func (e Estimate) format(mean string) string {
	switch {
	case math.IsInf(e.Mean, 1):
		return "diverged"
	case !metrics.Finite(e.Mean):
		return "–"
	case !metrics.Finite(e.Err):
		return fmt.Sprintf(mean, e.Mean)
	}
	return fmt.Sprintf(mean+" ± %.4f", e.Mean, e.Err)
}

// Errors is the distance of the mean from zero in standard errors. It is 0 if the error is not known.
func (e Estimate) Errors() float64 {
	if !metrics.Finite(e.Mean) || !metrics.Finite(e.Err) || e.Err == 0 {
		return 0
	}
	return math.Abs(e.Mean) / e.Err
}

// MarshalJSON writes null for values that are not finite.
func (e Estimate) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]*float64{"mean": Number(e.Mean), "stderr": Number(e.Err)})
}
