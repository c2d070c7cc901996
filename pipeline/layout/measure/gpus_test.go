package measure

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPeakFLOPS(t *testing.T) {
	for adapter, want := range map[string][2]float64{
		"NVIDIA H100 80GB HBM3":                {66.9e12, 989.4e12},
		"NVIDIA A100-SXM4-80GB":                {19.5e12, 312e12},
		"NVIDIA GeForce RTX 4090":              {82.6e12, 165.2e12},
		"AMD Radeon RX 7900 XTX (RADV NAVI31)": {61.4e12, 122.8e12},
		"NVIDIA GeForce RTX 4090 Laptop GPU":   {},
		"NVIDIA GeForce RTX 4090 D":            {},
		"NVIDIA H100 PCIe":                     {},
		"NVIDIA A100-SXM4-40GB":                {},
		"llvmpipe (LLVM 19.1.1, 256 bits)":     {},
		"":                                     {},
	} {
		assert.Equal(t, want, [2]float64{PeakFLOPS(adapter, false), PeakFLOPS(adapter, true)}, adapter)
	}
}
