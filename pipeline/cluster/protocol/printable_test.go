package protocol_test

import (
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/stretchr/testify/assert"
)

// What members say cannot command the coordinator's terminal.
func TestPrintable(t *testing.T) {
	i := protocol.Info{Host: "a\x1b", Devices: []protocol.Device{{Name: "cpu:0\a"}}}
	assert.Equal(t, protocol.Info{Host: "a�", Devices: []protocol.Device{{Name: "cpu:0�"}}}, i.Printable())
	assert.Equal(t, "cpu:0\a", i.Devices[0].Name, "the original stays")
}
