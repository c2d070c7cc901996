package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// presets are the SmolLM2 models as published, and a tiny model that trains in minutes on a CPU.
func presets() map[string]Config {
	llama := Defaults()
	tiny := llama
	tiny.VocabSize, tiny.DModel, tiny.NLayers, tiny.NHeads, tiny.NKVHeads = 256, 128, 4, 4, 4
	tiny.FFN.DFF, tiny.SeqLen = 352, 128
	smol := llama
	smol.VocabSize, smol.SeqLen, smol.Rope.Theta, smol.TieEmbeddings = 49152, 2048, 100000, true
	smol135, smol360 := smol, smol
	smol135.DModel, smol135.NLayers, smol135.NHeads, smol135.NKVHeads, smol135.FFN.DFF = 576, 30, 9, 3, 1536
	smol360.DModel, smol360.NLayers, smol360.NHeads, smol360.NKVHeads, smol360.FFN.DFF = 960, 32, 15, 5, 2560
	return map[string]Config{"tiny": tiny, "smollm2-135m": smol135, "smollm2-360m": smol360}
}

// Presets lists the names of the presets.
func Presets() []string { return slices.Sorted(maps.Keys(presets())) }

// Preset returns the config of a preset.
func Preset(name string) (Config, error) {
	c, ok := presets()[name]
	if !ok {
		return Config{}, fmt.Errorf("unknown preset %q, expected one of %s", name, strings.Join(Presets(), ", "))
	}
	return c, nil
}
