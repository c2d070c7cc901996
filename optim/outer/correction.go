package outer

import "slices"

// Correction is how replicas bridge the steps between sending a fragment and landing its exchange: a row of the table.
type Correction struct {
	Name  string
	About string
	// ahead is a: the base is the outer weights and a times the last outer step.
	ahead func(c Config, replicas int) float64
	// kept is the share of a replica's own steps since it sent that remain when the exchange lands.
	kept func(c Config) float64
	// estimates reports whether replicas go on from B − share·q_i when they send, so that s_i is that estimate of B'.
	estimates bool
	share     func(c Config, replicas int) float64
}

func noFactor(Config, int) float64 { return 0 }

func all(Config) float64 { return 1 }

// damping is the share of a replica's own steps that "damped" keeps.
func damping(c Config) float64 { return 1 - 0.75*c.Lateness }

// othersShare is the a of error feedback.
func othersShare(c Config, replicas int) float64 {
	return 0.5 * c.Lateness * float64(replicas-1) / float64(replicas) * (1 - c.Momentum) / c.LR
}

// Corrections is the table of corrections of late exchanges, the default one first.
//
// With "damped" a replica keeps the share κ = 1 − ¾·lateness of its own steps since it sent. In steep directions of the
// loss these steps have already reduced its distance to the others. Landing subtracts that distance again. Streaming
// DiLoCo (arXiv:2501.18512, section 2.2) mixes the replica's weights with the outer weights. This discards half of the
// steps before sending as well. docs/REPLICAS.md has the measurements behind the factor ¾.
//
// With "error_feedback" the base is ahead of the outer weights by what the other replicas have probably learned while
// the exchange was under way: a = ½·lateness·(K − 1)/K·(1 − μ)/η. In the steady state of the outer optimizer its step
// is η/(1 − μ) times the mean move of the replicas in a period. It is the error feedback of delayed updates,
// x = y + a·(y − y_before), one level up.
//
// With "eager" a replica takes its own share of the outer step when it sends, as if the others had sent nothing, and
// the shares of the others when the exchange lands (Kale et al., Eager Updates For Overlapped Communication and
// Computation in DiLoCo, arXiv:2502.12996, section 3). For an outer optimizer without momentum the weights are those of
// the paper: the sum over exchanges of its Δ̃_t = (Δ_t,i − Δ_{t−1},i)/K + mean Δ_{t−1} is the sum of all means but the
// last, plus Δ_t,i/K.
func Corrections() []Correction {
	return []Correction{
		{Name: "damped", About: "a replica keeps 1 − ¾·lateness of the steps it has made since it sent", kept: damping,
			ahead: noFactor, share: noFactor},
		{Name: "error_feedback", About: "the base is ahead by what others have probably learned meanwhile", kept: all,
			ahead: othersShare, share: noFactor},
		{Name: "plain", About: "a replica keeps all steps it has made since it sent", kept: all, ahead: noFactor, share: noFactor},
		{Name: "eager", About: "a replica applies its own share of the outer step when it sends (arXiv:2502.12996)", kept: all,
			ahead: noFactor, estimates: true,
			share: func(c Config, replicas int) float64 { return c.LR * (1 + c.Momentum) / float64(replicas) }},
	}
}

// CorrectionNames lists the names of the table Corrections.
func CorrectionNames() (names []string) {
	for _, c := range Corrections() {
		names = append(names, c.Name)
	}
	return names
}

func (c Config) correction() Correction {
	all := Corrections()
	return all[slices.IndexFunc(all, func(r Correction) bool { return r.Name == c.Correction })]
}
