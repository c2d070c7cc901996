//go:build linux

package matmul

import (
	"fmt"
	"testing"

	"github.com/gpupipe/gpupipe/internal/testing/tier"
	"github.com/gpupipe/gpupipe/runtime/vulkan"
	"github.com/stretchr/testify/require"
)

// The kernels compute correct products on devices with cooperative matrices.
func TestCooperativeVariantsOnDevices(t *testing.T) {
	tier.Rest(t)
	found, err := vulkan.Adapters()
	require.NoError(t, err)
	ran := 0
	for n, a := range found {
		if len(a.Limits.Cooperative) == 0 {
			continue
		}
		dev, err := vulkan.Open(n, vulkan.Options{CacheDir: t.TempDir()})
		require.NoError(t, err)
		defer dev.Close()
		l := dev.Limits()
		for i, c := range cooperativeCases() {
			ks := cooperativeVariants(c.spec, l)
			if len(ks) == 0 {
				continue
			}
			ran++
			t.Run(fmt.Sprintf("%s,%s", a.Adapter, c.name), func(t *testing.T) {
				check(t, dev, c, some(ks, i), asIs)
			})
		}
	}
	if ran == 0 {
		t.Skip("no device here has cooperative matrices of 16-bit floats")
	}
}
