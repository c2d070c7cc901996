package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/gpupipe/gpupipe/pipeline/config"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Where there is no cpu:0, nothing offers it.
func TestHelpWithoutCPU(t *testing.T) {
	manualOn := func(goos string) string {
		parser, err := kong.New(&commands{}, kong.Name("gpupipe"), kong.Description(description), kong.Vars(targetVars()),
			kong.Vars{"version": ""}, kong.KindMapper(reflect.String, kong.MapperFunc(text)))
		require.NoError(t, err)
		adaptHelp(parser.Model.Node, goos)
		return manual(parser.Model.Node, "1")
	}
	assert.Contains(t, manualOn("linux"), "cpu:0, webgpu:0, vulkan:0, null")
	for _, goos := range []string{"windows", "darwin"} {
		page := manualOn(goos)
		for _, name := range []string{"cpu:0", "vulkan:", "Vulkan compute"} {
			assert.NotContains(t, page, name)
		}
		assert.Contains(t, page, "webgpu:0, null")
		assert.Contains(t, page, "Without \\-\\-device the first is used.")
		for _, k := range config.Keys() {
			assert.NotContains(t, onSystem(goos, k.Help), "cpu:0", k.Name)
		}
		assert.Equal(t, "Empty: the default device for all.",
			strings.TrimSpace(onSystem(goos, "Empty: the default device for all. Ranks on cpu:0 divide its cores.")))
		assert.Equal(t, "no device found: install the GPU's driver", noAdapter(goos))
		assert.ErrorContains(t, unknownBackend("x", goos), "expected webgpu:N or null (gpupipe devices lists them)")
	}
	assert.Equal(t, "no device found: install the GPU's Vulkan driver, or use cpu:0", noAdapter("linux"))
}
