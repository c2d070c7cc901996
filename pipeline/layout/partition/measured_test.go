package partition

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What was measured for a problem applies to another of the same model, with microbatches of another size, from a file.
func TestMeasured(t *testing.T) {
	units := []Unit{{Name: "embed", Parameters: 8, Out: 4}, {Name: "head", Parameters: 8}}
	times := []Time{{Forward: 1, Backward: 2, Update: 3}, {Forward: 4, Backward: 5, Update: 6}}
	p := Problem{Units: units, Devices: []Device{{Name: "a", Times: times, Memory: 9}, {Name: "b", Times: times},
		{Name: "c", Times: times}}, Network: Uniform(3, Link{Latency: 1, Bandwidth: 2})}
	text, err := json.Marshal(p.Measured(true))
	require.NoError(t, err)
	var m Measured
	require.NoError(t, json.Unmarshal(text, &m))
	assert.True(t, m.Modelled)

	other := Problem{Units: []Unit{{Name: "embed", Parameters: 8, Out: 8}, units[1]}, Devices: make([]Device, 2)}
	require.NoError(t, m.Apply(&other))
	assert.Equal(t, []Time{{Forward: 2, Backward: 4, Update: 3}, {Forward: 8, Backward: 10, Update: 6}}, other.Devices[1].Times)
	assert.Equal(t, "a", other.Devices[0].Name)
	assert.Equal(t, int64(9), other.Devices[0].Memory)
	assert.Equal(t, Uniform(2, Link{Latency: 1, Bandwidth: 2}), other.Network)
	assert.Equal(t, other.Devices[1:], other.Of(1).Devices)
	assert.Nil(t, other.Of(1).Network)

	other.Devices = make([]Device, 4)
	assert.ErrorContains(t, m.Apply(&other), "found 3 devices, expected 4")
	m.Network.Links = m.Network.Links[:1]
	assert.ErrorContains(t, m.Check(), "found machines of 3 devices and links of 1, expected 3")
}
