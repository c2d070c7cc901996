package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/optim"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func parseSmall(t *testing.T, overrides ...string) Config {
	t.Helper()
	c, err := Parse("c.yaml", []byte(smallConfig), overrides)
	require.NoError(t, err)
	return c
}

// Every optimizer of the table has its defaults, which are written out and read back.
func TestOptimizersHaveTheirDefaults(t *testing.T) {
	for _, k := range optim.Optimizers() {
		c := parseSmall(t, "optimizer.name="+k.Name)
		assert.Equal(t, k.Name, c.Optimizer.Name())
		assert.Equal(t, k.New(), c.Optimizer.Algorithm)
		again, err := Parse("saved.yaml", c.YAML(), nil)
		require.NoError(t, err)
		assert.Equal(t, c.Optimizer, again.Optimizer, string(c.YAML()))
		saved, err := ParseSaved("saved.yaml", c.YAML())
		require.NoError(t, err)
		assert.Equal(t, c.Optimizer, saved.Optimizer, string(c.YAML()))
	}
}

// Every hyperparameter of the tables is a key that is read, written out and checked.
func TestEveryHyperparameterIsAKey(t *testing.T) {
	for _, k := range optim.Optimizers() {
		o := defaultOptimizer()
		o.Algorithm = k.New()
		for _, f := range o.Fields() {
			value := ""
			switch v := f.Value.(type) {
			case *bool:
				value = fmt.Sprint(!*v)
			case *int:
				value = fmt.Sprint(*v + 1)
			case *float64:
				value = fmt.Sprint(*v / 2)
			case *string:
				value = f.Choices[len(f.Choices)-1]
			case *[2]float64:
				value = fmt.Sprintf("[%g, %g]", v[0]/2, v[1]/2)
			case *[3]float64:
				value = fmt.Sprintf("[%g, %g, %g]", v[0]/2, v[1]/2, v[2]/2)
			}
			c := parseSmall(t, "optimizer.name="+k.Name, "optimizer."+f.Key+"="+value)
			again, err := Parse("saved.yaml", c.YAML(), nil)
			require.NoError(t, err)
			assert.Equal(t, c.Optimizer, again.Optimizer, f.Key)
			assert.NotEqual(t, parseSmall(t, "optimizer.name="+k.Name).YAML(), c.YAML(), "%s: %s", k.Name, f.Key)
			assert.Contains(t, optimizerKeyNames(), f.Key)

			_, err = Parse("c.yaml", []byte(smallConfig), []string{"optimizer.name=" + k.Name, "optimizer." + f.Key + "={}"})
			assert.ErrorContains(t, err, "optimizer."+f.Key, "%s", k.Name)
		}
	}
}

// The sections that older configs have are of fields that there are.
func TestSectionedFieldsExist(t *testing.T) {
	for _, key := range []string{"soap.shampoo_beta", "soap.precondition_frequency", "soap.max_precond_dim", "adamw.lr", "adamw.betas",
		"adamw.eps"} {
		assert.Contains(t, optimizerKeyNames(), key)
	}
}

func TestHyperparametersThatDependOnOthers(t *testing.T) {
	soap := parseSmall(t, "optimizer={name: soap, betas: [0.9, 0.8]}").Optimizer.Algorithm.(*optim.SOAP)
	assert.Equal(t, 0.8, soap.ShampooBeta, "the second of betas unless given")
	soap = parseSmall(t, "optimizer={name: soap, betas: [0.9, 0.8], soap: {shampoo_beta: 0.5}}").Optimizer.Algorithm.(*optim.SOAP)
	assert.Equal(t, 0.5, soap.ShampooBeta)
	mars := parseSmall(t, "optimizer={name: mars, lr: 0.1, adamw: {lr: 0.2}, soap: {shampoo_beta: 0.5}}").Optimizer
	assert.Equal(t, []float64{0.1, 0.2}, []float64{mars.Algorithm.LearningRate(), mars.AdamW.LR})
	adamw := parseSmall(t, "optimizer={name: adamw, lr: 0.1, adamw: {lr: 0.2, eps: 1e-7}}").Optimizer
	assert.Equal(t, &optim.AdamW{LR: 0.1, Betas: [2]float64{0.9, 0.95}, Eps: 1e-7}, adamw.Algorithm)
	adamw = parseSmall(t, "optimizer={name: adamw, adamw: {lr: 0.2}}").Optimizer
	assert.Equal(t, 0.2, adamw.Algorithm.LearningRate(), "optimizer.adamw.lr unless optimizer.lr is given")
	dc := parseSmall(t, "optimizer.dc_lambda=0.5").Optimizer.Correction("dc_asgd")
	assert.Equal(t, &optim.DCASGD{Lambda: 0.5}, dc)
}

// The router's optimizer is a key of the optimizers that leave parameters to AdamW. Others read it without effect.
func TestRouter(t *testing.T) {
	for value, want := range map[string]string{"same": RouterSame, "muon": RouterSame, "adamw": RouterAdamW, "": RouterSame} {
		assert.Equal(t, want, parseSmall(t, "optimizer.router="+value).Optimizer.Router, value)
	}
	for _, name := range []string{"adamw", "lion"} {
		c := parseSmall(t, "optimizer.name="+name, "optimizer.router=adamw")
		assert.Equal(t, RouterSame, c.Optimizer.Router)
		assert.NotContains(t, string(c.YAML()), "router:")
	}
	for _, name := range []string{"muon", "lion"} {
		_, err := Parse("c.yaml", []byte(smallConfig), []string{"optimizer.name=" + name, "optimizer.router=soap"})
		assert.ErrorContains(t, err, `optimizer.router: found "soap", expected one of same, adamw`)
	}
}

// Run folders of before the tables wrote the keys of all optimizers.
func TestConfigsWithTheKeysOfAllOptimizers(t *testing.T) {
	const old = `
optimizer:
    name: NAME
    lr: 0.5
    momentum: 0.9
    nesterov: false
    weight_decay: 0.2
    newton_schulz: polar_express
    dc_lambda: 0.08
    scale: match_rms_adamw
    betas: BETAS
    eps: 1e-06
    beta2: 0.9
    gamma: 0.05
    soap:
        shampoo_beta: 0.8
        precondition_frequency: 20
        max_precond_dim: 128
    adamw:
        lr: 0.25
        betas: [0.8, 0.9]
        eps: 1e-07
`
	muon := optim.Muon{LR: 0.5, Momentum: 0.9, NewtonSchulz: "polar_express", Scale: "match_rms_adamw"}
	twoBetas := optim.AdamW{LR: 0.5, Betas: [2]float64{0.7, 0.6}, Eps: 1e-6}
	for name, want := range map[string]optim.Algorithm{
		"muon":    &muon,
		"normuon": &optim.NorMuon{Muon: muon, Beta2: 0.9},
		"adamw":   &optim.AdamW{LR: 0.5, Betas: [2]float64{0.8, 0.9}, Eps: 1e-7},
		"sgd":     &optim.SGD{LR: 0.5, Momentum: 0.9},
		"soap":    &optim.SOAP{AdamW: twoBetas, ShampooBeta: 0.8, PreconditionFrequency: 20, MaxPrecondDim: 128},
		"lion":    &optim.Lion{LR: 0.5, Betas: [2]float64{0.7, 0.6}},
		"adan":    &optim.Adan{LR: 0.5, Betas: [3]float64{0.7, 0.6, 0.5}, Eps: 1e-6},
		"mars":    &optim.MARS{AdamW: twoBetas, Gamma: 0.05},
	} {
		betas := "[]"
		switch want.(type) {
		case *optim.SOAP, *optim.Lion, *optim.MARS:
			betas = "[0.7, 0.6]"
		case *optim.Adan:
			betas = "[0.7, 0.6, 0.5]"
		}
		c, err := Parse("c.yaml", []byte(smallConfig+strings.NewReplacer("NAME", name, "BETAS", betas).Replace(old)), nil)
		require.NoError(t, err, name)
		assert.Equal(t, want, c.Optimizer.Algorithm)
		assert.Equal(t, 0.2, c.Optimizer.WeightDecay)
		if _, own := want.(*optim.AdamW); !own && !optim.ReadsAdamW(want) {
			_, section, _ := strings.Cut(string(c.YAML()), "optimizer:")
			section, _, _ = strings.Cut(section, "\nlr:")
			assert.NotContains(t, section, "adamw", "a resumed run ignores keys that have no effect")
		}
		if optim.ReadsAdamW(want) {
			assert.Equal(t, optim.AdamW{LR: 0.25, Betas: [2]float64{0.8, 0.9}, Eps: 1e-7}, c.Optimizer.AdamW)
		}
		assert.Equal(t, &optim.DCASGD{Lambda: 0.08}, c.Optimizer.Correction("dc_asgd"))
	}
}

func TestOptimizerErrors(t *testing.T) {
	for override, want := range map[string]string{
		"optimizer=5":                                  "optimizer: found the integer 5, expected a section",
		"optimizer.momntum=0.9":                        "optimizer.momntum: unknown key, expected one of name, lr, momentum, nesterov",
		"optimizer={adamw: {lrs: 1}}":                  "optimizer.adamw.lrs: unknown key",
		"optimizer={adamw.lr: 1}":                      `optimizer."adamw.lr": unknown key`,
		"optimizer={adamw: 1}":                         "optimizer.adamw: unknown key",
		"optimizer={lr: {a: 1}}":                       "optimizer.lr.a: unknown key",
		"optimizer={name: muon, betas: [0.9]}":         "optimizer.betas: found a list, expected none with muon",
		"optimizer={name: sgd, newton_schulz: newton}": `optimizer.newton_schulz: found "newton", expected one of jordan, polar_express`,
		"optimizer={dc_lambda: -1}":                    "optimizer.dc_lambda: found -1, expected a number of at least 0",
	} {
		_, err := Parse("c.yaml", []byte(smallConfig), []string{override})
		assert.ErrorContains(t, err, want, override)
	}
	for _, override := range []string{"optimizer=", "optimizer={adamw: }", "optimizer={name: , lr: }",
		"optimizer={name: adan, betas: []}"} {
		c := parseSmall(t, override)
		assert.Equal(t, optim.Optimizers()[slices.Index(optim.OptimizerNames(), c.Optimizer.Name())].New(), c.Optimizer.Algorithm)
	}
}

// The keys of the section lr are the fields of a schedule.
func TestScheduleKeys(t *testing.T) {
	s := optim.Schedule{}
	text := string(parseSmall(t).YAML())
	_, text, _ = strings.Cut(text, "\nlr:\n")
	text, _, _ = strings.Cut(text, "\npipeline:")
	for _, f := range s.Fields() {
		assert.Contains(t, text, f.Name+":")
	}
	assert.Equal(t, len(s.Fields()), strings.Count(text, ":"))
}
