package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
)

// What members say cannot command the coordinator's terminal.
func TestPrintable(t *testing.T) {
	assert.Equal(t, "Größe 7 µs", protocol.Printable("Größe 7 µs"))
	assert.Equal(t, "�[2Jx�y", protocol.Printable("\x1b[2Jx\ny"))
	i := protocol.Info{Host: "a\x1b", Devices: []protocol.Device{{Name: "cpu:0\a"}}}
	assert.Equal(t, protocol.Info{Host: "a�", Devices: []protocol.Device{{Name: "cpu:0�"}}}, i.Printable())
	assert.Equal(t, "cpu:0\a", i.Devices[0].Name, "the original stays")
}
