package device

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseName(t *testing.T) {
	for name, want := range map[string]Name{
		"": {}, "/2": {Threads: 2}, "cpu": {Backend: "cpu"}, "cpu:0/16": {Backend: "cpu", Numbered: true, Threads: 16},
		"cpu/1": {Backend: "cpu", Threads: 1}, "webgpu:3": {Backend: "webgpu", Index: 3, Numbered: true},
	} {
		n, err := ParseName(name)
		require.NoError(t, err, name)
		assert.Equal(t, want, n, name)
	}
	for name, want := range map[string]string{
		"webgpu:x":   `device "webgpu:x": expected a name such as webgpu:0`,
		"webgpu:-1":  `device "webgpu:-1": expected a name such as webgpu:0`,
		"cpu:":       `device "cpu:": expected a name such as webgpu:0`,
		"cpu:0/0":    `device "cpu:0/0": found "0" threads, expected a positive integer as in cpu:0/4`,
		"cpu:0/1025": `device "cpu:0/1025": found 1025 threads, expected 1 to 1024`,
		"cpu:0/":     `device "cpu:0/": found "" threads, expected a positive integer as in cpu:0/4`,
		"cpu:0/1/2":  `device "cpu:0/1/2": found "1/2" threads, expected a positive integer as in cpu:0/4`,
		"vulkan:0/2": `device "vulkan:0/2": found a number of threads, which only cpu:0 has`,
	} {
		_, err := ParseName(name)
		assert.EqualError(t, err, want)
	}
	assert.Equal(t, "cpu:0/3", WithThreads("cpu:0", 3))
	assert.Equal(t, "the default device", Described(WithThreads("", 3)))
	assert.Equal(t, `device "cpu:0/3"`, Described("cpu:0/3"))
}
