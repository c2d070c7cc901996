package protocol_test

import (
	"math"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/cluster/protocol"
	"github.com/gpupipe/gpupipe/pipeline/engine"
	"github.com/gpupipe/gpupipe/pipeline/engine/stage"
	"github.com/gpupipe/gpupipe/pipeline/layout/partition"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzDecode decodes arbitrary bytes. What can be decoded is encoded to the same header again.
func FuzzDecode(f *testing.F) {
	for _, h := range []protocol.Header{
		protocol.Write{Variable: protocol.Variable{Name: "m.w", State: true}},
		protocol.Begin{Segment: 3, Writes: 9, From: 4, To: 8, Evaluates: true},
		protocol.Batch{Segment: 3, Batch: 4, Names: []string{"tokens"}},
		protocol.Grant{Segment: 3, Limit: 5, Done: 2},
		protocol.End{Segment: 3, Limit: 6},
		protocol.Read{Number: 2},
		protocol.Record{Messages: 4, Last: true},
		protocol.Result{Segment: 3, Batch: 4, Microbatch: 1, Norm: 7, Scale: 8, Status: 2, Routing: true, Stage: 1},
		protocol.Ended{Segment: 3, Limit: 6},
		protocol.Tensor{Number: 2, Variable: protocol.Variable{Name: "w", Version: engine.Newest}},
		protocol.Fault{Error: "lost", Lost: true, Malformed: "b"},
		protocol.Events{Dropped: 3, Last: true},
		protocol.LinkReport{},
		protocol.Stage{Segment: 1, To: 2, Message: stage.Message{Kind: stage.Gradient, Batch: 7, Microbatch: 1, VirtualStage: 1, From: 2},
			Taken: 5},
		protocol.Filler{},
		protocol.Move{Step: 3, Fragment: 1},
		protocol.Change{Step: 3, Fragment: 1},
		protocol.Copy{Param: "w", Version: engine.Newest},
		protocol.Neighbors{},
		protocol.Relay{Step: 3, Fragment: 1, From: "a", Next: "b", Sizes: []int64{4}},
		protocol.Piece{Step: 3, Fragment: 1, Number: 2},
		protocol.Missing{Step: 3, Fragment: 1, Why: protocol.Overdue},
	} {
		text := protocol.Encode(h)
		again, err := protocol.Decode(text)
		require.NoError(f, err)
		require.Equal(f, h, again)
		f.Add(text)
	}
	f.Add([]byte("\x04{\"limit\":-1}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := protocol.Decode(text)
		if err != nil {
			return
		}
		again, err := protocol.Decode(protocol.Encode(h))
		require.NoError(t, err)
		assert.Equal(t, protocol.Encode(h), protocol.Encode(again))
	})
}

func TestDecodeRefuses(t *testing.T) {
	for text, expect := range map[string]string{
		"":                          "it is empty",
		"\x00{}":                    "found kind 0, expected 1 to 22",
		"{}":                        "found kind 123",
		"\x01":                      "EOF",
		"\x02{\"x\":2}":             `unknown field "x"`,
		"\x05{\"limit\":1}{}":       "more follows",
		"\x05{\"limit\":\"begin\"}": "cannot unmarshal",
	} {
		_, err := protocol.Decode([]byte(text))
		assert.ErrorContains(t, err, expect, text)
	}
}

// Results keep every bit, those of numbers that are not finite included.
func TestResults(t *testing.T) {
	for _, r := range []engine.Result{
		{Batch: 3, Microbatch: 2, Losses: []float32{1.5, float32(math.Inf(1))}},
		{Batch: 4, Norm: math.Inf(1), Scale: 65536, Status: 2},
		{Batch: 0, Norm: 0.1},
		{Batch: 3, Microbatch: 1, Routing: []float32{1, float32(math.Inf(1))}, VirtualStage: 2},
	} {
		h, payload := protocol.EncodeResult(7, r)
		decoded, err := protocol.Decode(protocol.Encode(h))
		require.NoError(t, err)
		require.Equal(t, h, decoded)
		got, err := protocol.DecodeResult(h, payload)
		require.NoError(t, err)
		assert.Equal(t, r, got)
	}
	h, _ := protocol.EncodeResult(1, engine.Result{Routing: []float32{1}})
	_, err := protocol.DecodeResult(h, nil)
	assert.ErrorContains(t, err, "routing without a tensor")
	h, _ = protocol.EncodeResult(1, engine.Result{Norm: math.NaN()})
	got, err := protocol.DecodeResult(h, nil)
	require.NoError(t, err)
	assert.True(t, math.IsNaN(got.Norm))
	for _, payload := range [][][]byte{{{1, 2, 3}}, {{}}, {{1, 2, 3, 4}, {1, 2, 3, 4}}} {
		_, err := protocol.DecodeResult(h, payload)
		assert.ErrorContains(t, err, "expected none or one of f32")
	}
}

func TestCostsAreChecked(t *testing.T) {
	c := protocol.CostsOf(partition.Problem{Units: make([]partition.Unit, 2),
		Devices: []partition.Device{{Name: "cpu:0", Times: make([]partition.Time, 2)}}}, true)
	require.NoError(t, c.Check(1))
	assert.ErrorContains(t, c.Check(2), "costs of 1 devices and times of 1, expected 2")
	c.Times[0][1].Update = -1
	assert.ErrorContains(t, c.Check(1), "cpu:0: a time of -1 seconds, expected none below 0")
	c.Times[0] = nil
	assert.ErrorContains(t, c.Check(1), "cpu:0: times of 0 units, expected 2")
}

// The error of a fault fits in a header, whatever it contains.
func TestLongErrorsAreShortened(t *testing.T) {
	assert.Equal(t, "short", protocol.Shorten("short"))
	for _, c := range []string{"x", "\x01", "é", "\xff"} {
		long := protocol.Shorten("first " + strings.Repeat(c, 9000) + " last")
		assert.LessOrEqual(t, len(protocol.Encode(protocol.Fault{Lost: true, Error: long})), 4<<10)
		assert.True(t, strings.HasPrefix(long, "first ") && strings.HasSuffix(long, " last"))
	}
}
