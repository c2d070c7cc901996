package model

import (
	"fmt"
	"slices"
	"strings"
)

// preset is a config by name.
type preset struct {
	name string
	Config
}

// presets are models as published, with the context of their published configs unless a comment says otherwise, and a
// tiny model that trains in minutes on a CPU. A family is a combination of features, and sizes.
func presets() []preset {
	return []preset{
		{"tiny", family(256, 128, 1e4, 1e-5).sized(128, 4, 4, 4, 352)},

		{"smollm2-135m", family(49152, 2048, 1e5, 1e-5).tied().sized(576, 30, 9, 3, 1536)},
		{"smollm2-360m", family(49152, 2048, 1e5, 1e-5).tied().sized(960, 32, 15, 5, 2560)},
		{"smollm3-3b", family(128256, 65536, 5e6, 1e-6).tied().rope(1, 1, 1, 0).sized(2048, 36, 16, 4, 11008)},

		{"llama3.2-1b", family(128256, 131072, 5e5, 1e-5).tied().llama3(32).sized(2048, 16, 32, 8, 8192)},
		{"llama3.2-3b", family(128256, 131072, 5e5, 1e-5).tied().llama3(32).sized(3072, 28, 24, 8, 8192)},
		{"llama3.1-8b", family(128256, 131072, 5e5, 1e-5).llama3(8).sized(4096, 32, 32, 8, 14336)},

		{"mistral-7b-v0.1", family(32000, 32768, 1e4, 1e-5).windows(4096).sized(4096, 32, 32, 8, 14336)},
		{"mixtral-8x7b", family(32000, 32768, 1e6, 1e-5).experts(MoE{Experts: 8, TopK: 2, DFF: 14336, Normalize: true,
			Balance: Balance{Aux: 0.02}}).
			sized(4096, 32, 32, 8, 0)},

		{"qwen3-0.6b", qwen3().tied().sized(1024, 28, 16, 8, 3072)},
		{"qwen3-1.7b", qwen3().tied().sized(2048, 28, 16, 8, 6144)},
		{"qwen3-4b", qwen3().tied().sized(2560, 36, 32, 8, 9728)},
		{"qwen3-8b", qwen3().sized(4096, 36, 32, 8, 12288)},
		{"qwen3-30b-a3b", qwen3().experts(MoE{Experts: 128, TopK: 8, DFF: 768, Normalize: true, Balance: Balance{Aux: 1e-3}}).
			sized(2048, 48, 32, 4, 0)},

		{"olmo2-1b", olmo(100352, 4096).sized(2048, 16, 16, 16, 8192)},
		{"olmo2-7b", olmo(100352, 4096).sized(4096, 32, 32, 32, 11008)},
		{"olmo2-13b", olmo(100352, 4096).sized(5120, 40, 40, 40, 13824)},
		// the context of its pretraining
		{"olmo3-7b", olmo(100278, 8192).windows(4096, LocalLayer, LocalLayer, LocalLayer, FullLayer).sized(4096, 32, 32, 32, 11008)},
		{"olmoe-1b-7b", family(50304, 4096, 1e4, 1e-5).norms(NormPre, QKFull).
			experts(MoE{Experts: 64, TopK: 8, DFF: 1024, Balance: Balance{Aux: 0.01, Z: 1e-3}}).sized(2048, 16, 16, 16, 0)},

		// DeepSeek-V3's expert block on plain attention.
		{"dots1-142b", family(152064, 32768, 1e7, 1e-5).norms(NormPre, QKHead).
			experts(MoE{Experts: 128, TopK: 6, DFF: 1408, Shared: 2, DenseFirst: 1, Score: SigmoidScore, Normalize: true, Scale: 2.5,
				Balance: Balance{Bias: 1e-3}}).sized(4096, 62, 32, 32, 10944)},

		{"nanochat-d20", nanochat().sized(1280, 20, 10, 10, 5120)},
	}
}

// family is a Llama of a vocabulary and a context.
func family(vocab, seqLen int, theta, eps float64) Config {
	c := Defaults()
	c.VocabSize, c.SeqLen, c.Rope.Theta, c.Norm.Eps = vocab, seqLen, theta, eps
	return c
}

func qwen3() Config {
	c := family(151936, 40960, 1e6, 1e-6).norms(NormPre, QKHead)
	c.Attention.HeadDim = 128
	return c
}

func olmo(vocab, seqLen int) Config { return family(vocab, seqLen, 5e5, 1e-6).norms(NormPost, QKFull) }

// nanochat normalizes queries and keys after it has rotated them, which is the same without weights.
func nanochat() Config {
	c := family(65536, 2048, 1e4, 1e-6)
	c.Norm.Weight, c.Norm.QK, c.Norm.Embedding = false, QKHead, true
	c.FFN.Kind, c.Logits.Softcap, c.ZeroInit = ReLU2, 15, true
	return c
}

func (c Config) sized(dModel, layers, heads, kvHeads, dFF int) Config {
	c.DModel, c.NLayers, c.NHeads, c.NKVHeads, c.FFN.DFF = dModel, layers, heads, kvHeads, dFF
	return c.Completed()
}

func (c Config) tied() Config {
	c.TieEmbeddings = true
	return c
}

func (c Config) rope(layers ...int) Config {
	c.Attention.Rope = layers
	return c
}

func (c Config) windows(window int, pattern ...string) Config {
	c.Attention.Window, c.Attention.Pattern = window, pattern
	return c
}

func (c Config) llama3(factor float64) Config {
	c.Rope.Scaling = Scaling{Kind: Llama3Scaling, Factor: factor, Low: 1, High: 4, Original: 8192}
	return c
}

func (c Config) experts(m MoE) Config {
	c.MoE = m
	return c
}

func (c Config) norms(place, qk string) Config {
	c.Norm.Place, c.Norm.QK = place, qk
	return c
}

// Presets lists the names of the presets.
func Presets() (names []string) {
	for _, p := range presets() {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return names
}

// Preset returns the config of a preset.
func Preset(name string) (Config, error) {
	all := presets()
	i := slices.IndexFunc(all, func(p preset) bool { return p.name == name })
	if i < 0 {
		return Config{}, fmt.Errorf("unknown preset %q, expected one of %s", name, strings.Join(Presets(), ", "))
	}
	return all[i].Config, nil
}
