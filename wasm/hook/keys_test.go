package hook_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/wasm/hook"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An unknown config key is an error before the module has an effect: for a loss after it is built, otherwise when the
// module is opened.
func TestUnknownKeysOfAConfiguration(t *testing.T) {
	h := newHost(t)
	for _, c := range []struct{ file, hook, config, want string }{
		{"focal_loss", hook.BuildLoss, `{"gama": 3}`,
			`hook ../../examples/hooks/focal_loss.wasm: build_loss: failed: config: unknown key "gama", expected one of gamma, z`},
		{"quality_filter", hook.MapDocument, `{"least_words": 9, "most": 1}`,
			`start function: failed: config: unknown key "most", expected one of least_letters, least_words, most_symbols`},
		{"inverse_sqrt", hook.LearningRate, `{"warm up": 1}`,
			`start function: failed: config: unknown key "warm up", expected one of warmup`},
		{"label_smoothing", hook.BuildLoss, `{"eps": 0.1}`, `build_loss: failed: config: unknown key "eps", expected one of epsilon`},
		{"early_stopping", hook.OnMetrics, `{"pat\u0069ence": 1, "least\n": 2}`,
			`config: unknown key "least\n", expected one of least, pat`},
	} {
		err := try(load(t, h, hook.Spec{File: examples + c.file + ".wasm", Hook: c.hook, Config: []byte(c.config)}))
		require.Error(t, err)
		assert.ErrorContains(t, err, c.want)
	}
}
