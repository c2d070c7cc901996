//go:build linux && cgo

package cpu

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

func files(of map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, content := range of {
		m[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return m
}

func TestReadingTheMachine(t *testing.T) {
	var m machine
	m.read(files(map[string]string{"proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\nflags\t\t: fpu avx512f\n\nprocessor : 1\nmodel name : other\n"}))
	assert.Equal(t, machine{model: "Xeon", vendor: "Intel", features: "fpu avx512f"}, m)
	m = machine{}
	m.read(files(map[string]string{"proc/cpuinfo": "processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd0c\n"}))
	assert.Equal(t, "Arm", m.vendor)
	assert.Equal(t, "fp asimd", m.features)
	assert.Contains(t, m.model, " CPU, part 0xd0c")
	m = machine{}
	m.read(files(nil))
	assert.Contains(t, m.model, " CPU")
}
