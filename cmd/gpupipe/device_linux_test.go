package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// That there is no driver is another mistake than that there is no loader.
func TestVulkanWithoutDrivers(t *testing.T) {
	for _, variable := range []string{"VK_DRIVER_FILES", "VK_ICD_FILENAMES"} {
		t.Setenv(variable, "/nowhere")
	}
	for _, name := range []string{"vulkan", "vulkan:0", "vulkan:7"} {
		code, _, errs := command("bench", "--device", name, "--filter", "dispatch")
		assert.Equal(t, exitMistake, code)
		assert.Contains(t, errs, "the Vulkan loader finds no driver", name)
	}
}
