package schedule

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func parse(t *testing.T, lines ...string) *Schedule {
	t.Helper()
	s, err := Parse("mine", strings.Join(lines, "\n"))
	require.NoError(t, err)
	return s
}

func TestValidateNamesTheError(t *testing.T) {
	for want, lines := range map[string][]string{
		"stage 1: B1.0 is missing":                                                             {"F0 F1 B0 B1 U0", "F0 F1 B0 U0"},
		"stage 0: action 2, F0.0, is listed twice, first as action 1":                          {"F0 F0 B0 U0"},
		"stage 0: action 1, B0.0, stands before F0.0, which it needs":                          {"B0 F0 U0"},
		"stage 0: action 2, W0.0, stands before I0.0, which it needs":                          {"F0 W0 I0 U0"},
		"stage 0: action 3, U0, stands before B1.0, which it needs":                            {"F0 B0 U0 F1 B1"},
		"stage 0: action 3, B1.0, stands before B0.0, which it needs":                          {"F0 F1 B1 B0 U0"},
		"stage 0: action 3, F0.1, stands before U0, which it needs":                            {"F0 B0 F0.1 B0.1 U0 U1"},
		"stage 0: action 5, F0.2, stands before U0, which it needs":                            {"# delay: 1", "F0 B0 F0.1 B0.1 F0.2 B0.2 U0 U1 U2"},
		"stage 0: action 3, U1, stands before U0, which it needs":                              {"# delay: 1", "F0.1 B0.1 U1 F0 B0 U0"},
		"stage 0: action 3, B0.0, is not expected: the backward is split, with I0.0":           {"F0 I0 B0 W0 U0"},
		"stage 0: action 2, SF0.0, is not expected: the schedule contains computation only":    {"F0 SF0 B0 U0", "F0 B0 U0"},
		"stage 0: action 1, RF0.0, is not expected: virtual stage 0 of 1 has no such neighbor": {"# links: none", "RF0 F0 B0 N0 U0"},
		"stage 0: action 4, SW0, is not expected: the header has links none, with which a batch has [": {"# links: none",
			"F0 B0 N0 SW0 U0"},
		"stage 0: N0 is missing":    {"# links: none", "F0 B0 U0"},
		"stage 1: RF0.0 is missing": {"# links: none", "F0 SF0 RB0 B0 N0 U0", "F0 B0 SB0 N0 U0"},
		"stage 0: action 4, E0.0, is not expected: a schedule either evaluates":     {"F0 B0 U0 E0"},
		"found replica and copied, expected one of them":                            {"# links: replica copied", "F0 B0 SG0 RW0"},
		"which would make copies differ":                                            {"# delay: -1", "# links: tied", "F0 B0 U0"},
		"depth: found -1, expected 0 to":                                            {"# depth: -1", "F0 B0 U0"},
		"depth: found 2, but stage 0 of 1 has 2 microbatches in flight, expected 3": {"# depth: 2", "F0 F1 B0 B1 U0"},
		"delay: found 7, expected -1 to 1":                                          {"# delay: 7", "F0 B0 U0"},
		"stage 1: action 5, B0.0, is the first gradient of its batch and needs a buffer, but 2 versions of the weights and the gradients of 1 batches fill all 3": {
			"# delay: 1", "F0 F1 F0.1 F1.1 B0 B1 B0.1 B1.1 U0 U1", "F0 F0.1 B0.1 F1 B0 B1 F1.1 B1.1 U0 U1"},
		"deadlock: stage 0 waits at B0.0 for RB0.0 from stage 1; stage 1 waits at F1.0 for RF1.0 from stage 0": {"F0 B0 F1 B1 U0",
			"F1 F0 B0 B1 U0"},
		"deadlock: stage 0 waits at U0 for N0 of stages [0 1]; stage 1 waits at F0.1 for RF0.1 from stage 0": {"# delay: 1",
			"F0 B0 U0 F0.1 B0.1 U1", "F0 B0 F0.1 B0.1 U0 U1"},
		"deadlock: stage 0 waits at action 4, SF1.0, for stage 1 to receive what was sent before; stage 1 waits at action 1, RF1.0, for it to come: RF0.0 from stage 0 is first": {
			"# links: none", "F0 SF0 F1 SF1 RB0 B0 RB1 B1 N0 U0", "RF1 F1 RF0 F0 B0 SB0 B1 SB1 N0 U0"},
		"deadlock: stage 0 waits at action 12, U1, for N1 of stage 1; stage 1 waits at action 11, RF0.2, for stage 0 to send it": {
			"# links: none", "# delay: 1", "F0 SF0 RB0 B0 F0.1 SF0.1 RB0.1 B0.1 N0 U0 N1 U1 F0.2 SF0.2 RB0.2 B0.2 N2 U2",
			"RF0 F0 B0 SB0 RF0.1 F0.1 B0.1 SB0.1 N0 U0 RF0.2 F0.2 B0.2 SB0.2 N1 U1 N2 U2"},
		"stage 1 waits at action 1, RF0.0, for stage 0 to send it": {"# links: none", "F0 RB0 SF0 B0 N0 U0", "RF0 F0 B0 SB0 N0 U0"},
	} {
		_, err := Validate(parse(t, lines...))
		assert.ErrorContains(t, err, "schedule mine: ")
		assert.ErrorContains(t, err, want)
	}
	_, err := Validate(&Schedule{Name: "none"})
	assert.ErrorContains(t, err, "schedule none: stages: found 0, expected 1 to 4096")
	_, err = Validate(&Schedule{Name: "none", Stages: 2, Chunks: 1, Microbatches: 1, Batches: 1})
	assert.ErrorContains(t, err, "found action lists of 0 stages, expected 2")
	s := parse(t, "F0 B0 U0")
	s.Actions[0] = append(s.Actions[0], Action{Kind: Forward, Microbatch: 9})
	_, err = Validate(s)
	assert.ErrorContains(t, err, "stage 0: action 4, F9.0, is not expected: the schedule has 1 microbatches per batch, 1 batches and 1 chunks per stage")
	_, err = Communicate(s, Copies{})
	assert.ErrorContains(t, err, "F9.0")
	_, err = Repeat(s, 2)
	assert.ErrorContains(t, err, "F9.0")
}

// Stage 0 has more forwards ahead than its channel holds, while stage 1 wants to send back: stage 1 takes one early.
func TestReceivesThatFreeASender(t *testing.T) {
	s := parse(t, "F0 F1 F2 F3 B0 B1 B2 B3 U0", "F0 B0 F1 B1 F2 B2 F3 B3 U0")
	c, err := Communicate(s, Copies{})
	require.NoError(t, err)
	assert.Equal(t, parse(t, "# links: none",
		"F0 SF0 F1 SF1 F2 SF2 F3 SF3 RB0 B0 RB1 B1 RB2 B2 RB3 B3 N0 U0",
		"RF0 F0 B0 SB0 RF1 F1 B1 RF2 SB1 F2 B2 SB2 RF3 F3 B3 SB3 N0 U0").String(), c.String())
	g, err := Repeat(s, 3)
	require.NoError(t, err)
	g, err = g.Communicate(Copies{})
	require.NoError(t, err)
	for stage := range 2 { // a reader may stop anywhere
		for n := 1; n <= len(c.Actions[stage]); n++ {
			assert.Equal(t, c.Actions[stage][:n], first(g, stage, n))
		}
	}
	_, err = Communicate(c, Copies{})
	assert.ErrorContains(t, err, "found communication already")
	_, err = Communicate(s, Copies{Replica: true, Copied: true})
	assert.ErrorContains(t, err, "expected one of them")
}

// Messages are received in the order of their channel, even if they are used in another order.
func TestReceivesInTheOrderOfTheChannel(t *testing.T) {
	c, err := Communicate(parse(t, "F0 F1 B0 B1 U0", "F1 F0 B0 B1 U0"), Copies{})
	require.NoError(t, err)
	assert.Equal(t, parse(t, "# links: none", "F0 SF0 F1 SF1 RB0 B0 RB1 B1 N0 U0", "RF0 RF1 F1 F0 B0 SB0 B1 SB1 N0 U0").String(),
		c.String())
}

// One stage with several chunks sends to itself.
func TestOneStageWithChunks(t *testing.T) {
	s, err := Generate("interleaved", Options{Stages: 1, Microbatches: 1, Chunks: 2})
	require.NoError(t, err)
	c, err := Communicate(s, Copies{Tied: true})
	require.NoError(t, err)
	c.Name, c.Copies = "mine", &Copies{}
	assert.Equal(t, parse(t, "# links: none", "F0 SF0 RF0.0:1 F0.0:1 B0.0:1 SB0.0:1 RB0.0 B0.0 N0 U0").String(), c.String())
}

// An action list may be read in part, and actions that were read are not kept.
func TestLongActionListsCostNoMemory(t *testing.T) {
	g, err := New("2bw", Options{Stages: 3, Microbatches: 4, Batches: 100_000})
	require.NoError(t, err)
	g, err = g.Communicate(Copies{Tied: true})
	require.NoError(t, err)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	n, before := 0, uint64(0)
	for a := range g.Actions(1) {
		if n++; n == 10_000 {
			before = heap()
		}
		if n == 250_000 {
			assert.Greater(t, a.Batch, 8000)
			assert.Less(t, heap(), before+100_000)
			break
		}
	}
	assert.Equal(t, 250_000, n)
}
