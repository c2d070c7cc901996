package config

import (
	"cmp"

	"github.com/gpupipe/gpupipe/internal/strictyaml"
)

// Optimizer chooses the optimizer. LR and WeightDecay are those of its own parameters: under sgd, adamw, lion and adan
// all; under muon, normuon and soap the matrices of the layers; under mars all matrices. The rest is left to AdamW at
// adamw.lr, and under soap at lr, with soap's betas and eps. Keys that an optimizer does not know do nothing, but for betas.
type Optimizer struct {
	Name         string    `yaml:"name" help:"Name of the optimizer."`
	LR           float64   `yaml:"lr" help:"Learning rate of the optimizer's own parameters. The others are updated by AdamW at optimizer.adamw.lr."`
	Momentum     float64   `yaml:"momentum" help:"Momentum of muon, normuon and sgd."`
	Nesterov     bool      `yaml:"nesterov" help:"Nesterov momentum of muon, normuon and sgd."`
	WeightDecay  float64   `yaml:"weight_decay" help:"Decoupled weight decay of matrices."`
	NewtonSchulz string    `yaml:"newton_schulz" help:"Coefficients of the Newton-Schulz iteration of muon and normuon."`
	DCLambda     float64   `yaml:"dc_lambda" help:"Strength of pipeline.correction: dc_asgd."`
	Scale        string    `yaml:"scale" help:"Scale of updates of muon and normuon: spectral is √max(1, rows/cols), match_rms_adamw is 0.2·√max(rows, cols)."`
	Betas        []float64 `yaml:"betas,flow" help:"Decay rates of the moments: two of lion, mars and soap, three of adan."`
	Eps          float64   `yaml:"eps" help:"Epsilon of adan, mars and soap."`
	Beta2        float64   `yaml:"beta2" help:"Decay rate of the second moments of normuon."`
	Gamma        float64   `yaml:"gamma" help:"Scale of the variance reduction of mars."`
	SOAP         SOAP      `yaml:"soap" help:"Settings of soap."`
	AdamW        AdamW     `yaml:"adamw" help:"Settings of adamw, also for the parameters that other optimizers leave to it."`
}

// SOAP are SOAP's own numbers.
type SOAP struct {
	ShampooBeta           float64 `yaml:"shampoo_beta" help:"Decay rate of the preconditioners."`
	PreconditionFrequency int     `yaml:"precondition_frequency" help:"Steps between updates of the eigenbasis."`
	MaxPrecondDim         int     `yaml:"max_precond_dim" help:"Longest side of a matrix that has a preconditioner."`
}

// AdamW are AdamW's own numbers; LR is that of what another optimizer leaves to it.
type AdamW struct {
	LR    float64    `yaml:"lr" help:"Learning rate."`
	Betas [2]float64 `yaml:"betas,flow" help:"Decay rates of the moments."`
	Eps   float64    `yaml:"eps" help:"Epsilon."`
}

func defaultOptimizer() Optimizer {
	return Optimizer{Name: "muon", Momentum: 0.95, Nesterov: true, WeightDecay: 0.1, NewtonSchulz: "jordan",
		Scale: "spectral", DCLambda: 0.04, Eps: 1e-8, Beta2: 0.95, Gamma: 0.025,
		SOAP:  SOAP{ShampooBeta: 0.95, PreconditionFrequency: 10, MaxPrecondDim: 4096},
		AdamW: AdamW{LR: 3e-4, Betas: [2]float64{0.9, 0.95}, Eps: 1e-8}}
}

// published are an optimizer's name and the numbers that its authors give as its defaults.
type published struct {
	name    string // of optimizer.name
	lr      float64
	betas   []float64
	adamWLR float64 // of what it leaves to AdamW, where they say
}

func optimizers() []published {
	return []published{
		{name: "muon", lr: 0.02},
		{name: "adamw"}, // at optimizer.adamw.lr
		{name: "sgd", lr: 0.1},
		{name: "normuon", lr: 0.02},
		{name: "soap", lr: 3e-3, betas: []float64{0.95, 0.95}},
		{name: "lion", lr: 1e-4, betas: []float64{0.9, 0.99}},
		{name: "adan", lr: 1e-3, betas: []float64{0.98, 0.92, 0.99}},
		{name: "mars", lr: 3e-3, betas: []float64{0.95, 0.99}, adamWLR: 3e-3},
	}
}

// published is the chosen one, the zero value if there is none of the name.
func (o *Optimizer) published() (p published) {
	for _, p = range optimizers() {
		if p.name == o.Name {
			return p
		}
	}
	return published{}
}

// complete fills in what depends on the name.
func (o *Optimizer) complete(d *strictyaml.Document) {
	p := o.published()
	if !d.Given("optimizer.lr") {
		o.LR = cmp.Or(p.lr, o.AdamW.LR)
	}
	if len(o.Betas) == 0 {
		o.Betas = p.betas
	}
	if !d.Given("optimizer.adamw.lr") {
		o.AdamW.LR = cmp.Or(p.adamWLR, o.AdamW.LR)
	}
	if o.Name == "soap" && !d.Given("optimizer.soap.shampoo_beta") && len(o.Betas) == 2 {
		o.SOAP.ShampooBeta = o.Betas[1]
	}
}

// OptimizerNames lists the values of optimizer.name.
func OptimizerNames() (names []string) {
	for _, p := range optimizers() {
		names = append(names, p.name)
	}
	return names
}

func (c Config) validateOptimizer() error {
	o := c.Optimizer
	if err := oneOf("optimizer.name", o.Name); err != nil {
		return err
	}
	if err := oneOf("optimizer.newton_schulz", o.NewtonSchulz); err != nil {
		return err
	}
	if err := oneOf("optimizer.scale", o.Scale); err != nil {
		return err
	}
	if n := len(o.published().betas); len(o.Betas) != n {
		if n == 0 {
			return Invalid("optimizer.betas", o.Betas, "none with %s: AdamW's are optimizer.adamw.betas", o.Name)
		}
		return Invalid("optimizer.betas", o.Betas, "%d numbers with %s", n, o.Name)
	}
	return o.validateNumbers()
}

func (o Optimizer) validateNumbers() error {
	type number struct {
		key   string
		value float64
		below float64
	}
	numbers := []number{
		{"optimizer.lr", o.LR, 1e3}, {"optimizer.adamw.lr", o.AdamW.LR, 1e3}, {"optimizer.weight_decay", o.WeightDecay, 1e3},
		{"optimizer.momentum", o.Momentum, 1}, {"optimizer.beta2", o.Beta2, 1}, {"optimizer.gamma", o.Gamma, 1e3},
		{"optimizer.soap.shampoo_beta", o.SOAP.ShampooBeta, 1},
	}
	for _, b := range o.AdamW.Betas {
		numbers = append(numbers, number{"optimizer.adamw.betas", b, 1})
	}
	for _, b := range o.Betas {
		numbers = append(numbers, number{"optimizer.betas", b, 1})
	}
	for _, n := range numbers {
		if n.value < 0 || n.value >= n.below {
			return Invalid(n.key, n.value, "a number of at least 0 and below %g", n.below)
		}
	}
	// The device computes in f32, where a smaller number is zero.
	switch {
	case o.AdamW.Eps < 1e-30 || o.AdamW.Eps > 1:
		return Invalid("optimizer.adamw.eps", o.AdamW.Eps, "a number from 1e-30 to 1")
	case o.Eps < 1e-30 || o.Eps > 1:
		return Invalid("optimizer.eps", o.Eps, "a number from 1e-30 to 1")
	case o.SOAP.PreconditionFrequency < 1:
		return Invalid("optimizer.soap.precondition_frequency", o.SOAP.PreconditionFrequency, "a number of steps, at least 1")
	case o.SOAP.MaxPrecondDim < 1:
		return Invalid("optimizer.soap.max_precond_dim", o.SOAP.MaxPrecondDim, "a length, at least 1")
	}
	return nil
}
