package draw

import (
	"encoding/xml"
	"errors"
	"image/color"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/schedule"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func simulated(t *testing.T, name string, o schedule.Options, c ...schedule.Cost) (*schedule.Schedule, *schedule.Result) {
	t.Helper()
	s, err := schedule.Generate(name, o)
	require.NoError(t, err)
	r, err := schedule.Simulate(s, schedule.Costs{VirtualStages: c})
	require.NoError(t, err)
	return s, r
}

func TestText(t *testing.T) {
	s, r := simulated(t, "1f1b", schedule.Options{Stages: 3, Microbatches: 3}, schedule.Even(1, 2, 1))
	text, err := Text(s, r, 0)
	require.NoError(t, err)
	assert.Equal(t, `0  F0 F1 F2 ·  ·  ·  ·  B0─── ·  B1─── ·  B2─── U0
1  ·  F0 F1 ·  ·  B0─── F2 B1─── ·  B2─── U0 ·  ·
2  ·  ·  F0 B0─── F1 B1─── F2 B2─── U0 ·  ·  ·  ·
`, strings.Join(trimmed(text), "\n")+"\n")

	// A narrow terminal gets blocks of rows, each no wider than it.
	narrow, err := Text(s, r, 20)
	require.NoError(t, err)
	assert.Equal(t, `0  F0 F1 F2 ·  ·  ·
1  ·  F0 F1 ·  ·  B0─
2  ·  ·  F0 B0─── F1

0  ·  B0─── ·  B1───
1  ── F2 B1─── ·  B2─
2  B1─── F2 B2─── U0

0  ·  B2─── U0
1  ── U0 ·  ·
2  ·  ·  ·  ·
`, strings.Join(trimmed(narrow), "\n")+"\n")

	// Over a link, one more microbatch in flight fills the time in which messages are on their way.
	for depth, want := range []string{`0  F0.0 F1.0 ·    ·    ·    B0.0 F0.1 B1.0 F1.1 ·    ·    B0.1 ·    B1.1
1  ·    ·    F0.0 B0.0 F1.0 B1.0 ·    ·    F0.1 B0.1 F1.1 B1.1 ·    ·
`, `0  F0.0 F1.0 F2.0 ·    ·    B0.0 F0.1 B1.0 F1.1 B2.0 F2.1 B0.1 ·    B1.1 ·    B2.1
1  ·    ·    F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 ·    ·
`} {
		s, err = schedule.Generate("2bw", schedule.Options{Stages: 2, Microbatches: 2 + depth, Depth: depth, Batches: 2})
		require.NoError(t, err)
		r, err = schedule.Simulate(s, schedule.Costs{VirtualStages: []schedule.Cost{schedule.Even(1, 1, 0)},
			Network: schedule.Uniform(2, schedule.Link{Latency: 0.5, Transfer: 0.5})})
		require.NoError(t, err)
		text, err = Text(s, r, 0)
		require.NoError(t, err)
		assert.Equal(t, want, strings.Join(trimmed(text), "\n")+"\n")
	}

	s, r = simulated(t, "2bw", schedule.Options{Stages: 1, Microbatches: 1, Batches: 2}, schedule.Even(1, 1, 0))
	text, err = Text(s, r, 0)
	require.NoError(t, err)
	assert.Equal(t, "0  F0.0 B0.0 F0.1 B0.1\n", text)

	s, r = simulated(t, "eval", schedule.Options{Stages: 2, Microbatches: 1}, schedule.Cost{})
	text, err = Text(s, r, 0)
	require.NoError(t, err)
	assert.Equal(t, "0\n1\n", strings.ReplaceAll(text, " ", ""), "nothing takes time")

	s, r = simulated(t, "eval", schedule.Options{Stages: 2, Microbatches: 3}, schedule.Even(1, 0, 0), schedule.Even(2000, 0, 0))
	_, err = Text(s, r, 0)
	assert.ErrorContains(t, err, "6001 cells wide, expected at most 4000")
}

func trimmed(text string) (lines []string) {
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return lines
}

func TestSVG(t *testing.T) {
	s, r := simulated(t, "zb-h1", schedule.Options{Stages: 3, Microbatches: 4, Batches: 2}, schedule.Even(1, 2, 1))
	s.Name = `<&">`
	path := filepath.Join(t.TempDir(), "a.SVG")
	require.NoError(t, Save(path, s, r))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	text := ""
	for d := xml.NewDecoder(strings.NewReader(string(b))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if c, is := token.(xml.CharData); is {
			text += string(c) + "\n"
		}
	}
	for _, e := range r.Events {
		if e.End > e.Start {
			assert.Contains(t, text, "\n"+number(s, e)+"\n")
		}
	}
	for _, want := range []string{"stage 2", "forward", "input gradient", "weight gradient", "update",
		`<&">: 3 stages, 4 microbatches per batch`, "Bubble 13.3 %. Numbers are microbatches."} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "evaluate")
}

func TestPNG(t *testing.T) {
	s, r := simulated(t, "gpipe", schedule.Options{Stages: 2, Microbatches: 2, Batches: 2}, schedule.Even(10, 20, 10))
	path := filepath.Join(t.TempDir(), "a.png")
	require.NoError(t, Save(path, s, r))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	img, err := png.Decode(f)
	require.NoError(t, err)
	b := img.Bounds()
	assert.LessOrEqual(t, b.Dx(), 1240, "wide enough, and no wider than a screen")
	p := newPicture(s, r)
	require.Equal(t, 1, p.bands)
	at := func(stage int, time float64) color.NRGBA { // near the lower edge of a stage's row, below the text
		x, y := p.x(0, time), margin+header+float64(stage)*(row+gap)+row-3
		return color.NRGBAModel.Convert(img.At(int(x), int(y))).(color.NRGBA)
	}
	assert.Equal(t, shade(schedule.Forward, 0), at(0, 5))
	assert.Equal(t, idle, at(1, 5))
	assert.Equal(t, shade(schedule.Backward, 0), at(1, 35))
	assert.Equal(t, shade(schedule.Update, 0), at(0, 95))
	assert.Equal(t, shade(schedule.Forward, 1), at(0, 105))
	assert.NotEqual(t, shade(schedule.Forward, 0), shade(schedule.Forward, 1))
}

// A long schedule continues in bands, each as wide as a screen, with labels as large as in a short one.
func TestBands(t *testing.T) {
	for _, batches := range []int{1, 3, 8} {
		s, r := simulated(t, "2bw", schedule.Options{Stages: 4, Microbatches: 8, Batches: batches}, schedule.Even(1, 2, 0))
		p := newPicture(s, r)
		assert.InDelta(t, cell, p.scale*unit(r), 1, "%d batches: a cell has room for its label", batches)
		covered := 0.0
		for band := range p.bands {
			assert.Positive(t, p.length(band))
			covered += p.length(band)
		}
		assert.InDelta(t, r.Makespan, covered, 1e-9)
		w, _ := p.size()
		assert.LessOrEqual(t, float64(w), 1240.0)
	}
	s, r := simulated(t, "2bw", schedule.Options{Stages: 4, Microbatches: 8, Batches: 200}, schedule.Even(1, 2, 0))
	assert.Equal(t, maxBands, newPicture(s, r).bands)
}

// Labels have the chunk where a stage has several.
func TestNumber(t *testing.T) {
	s, r := simulated(t, "interleaved", schedule.Options{Stages: 2, Microbatches: 2, Chunks: 2}, schedule.Even(1, 2, 1))
	var got []string
	for _, e := range r.Events {
		if e.Stage == 0 {
			got = append(got, number(s, e))
		}
	}
	assert.Equal(t, []string{"0:0", "1:0", "0:1", "1:1", "0:1", "1:1", "0:0", "1:0", "U"}, got)
}

func TestPicturesThatAreRefused(t *testing.T) {
	s, r := simulated(t, "gpipe", schedule.Options{Stages: 2, Microbatches: 1}, schedule.Even(1, 1, 0))
	assert.ErrorContains(t, Save("a.pdf", s, r), `a.pdf: found extension ".pdf", expected .svg or .png`)
	assert.ErrorContains(t, Save(filepath.Join(t.TempDir(), "no", "a.svg"), s, r), "no such file")
	s, r = simulated(t, "gpipe", schedule.Options{Stages: 1, Microbatches: 10_001}, schedule.Even(1, 1, 0))
	assert.ErrorContains(t, Save("a.png", s, r), "a.png: found 20003 actions to draw, expected at most 20000")
	s, r = simulated(t, "eval", schedule.Options{Stages: 2, Microbatches: 1}, schedule.Cost{})
	assert.NoError(t, Save(filepath.Join(t.TempDir(), "a.png"), s, r), "nothing takes time")
}

// exchanges are those of two replicas, whose connections carry a fragment in a step and a half.
func exchanges(t *testing.T, late int) *schedule.ExchangeResult {
	t.Helper()
	c := schedule.ExchangeCosts{Bytes: []float64{3, 3}, Sites: []schedule.Site{{}, {Up: 1}, {Up: 1}},
		Replicas: []schedule.ReplicaCost{{Share: 1}, {Step: 2, Site: 1}, {Step: 2, Site: 2}}}
	r, err := schedule.SimulateExchanges(schedule.Exchanges{Fragments: 2, Period: 4, Late: late, Last: schedule.Endless}, c, 16)
	require.NoError(t, err)
	return Shown(r, 6)
}

// A column a step has what is sent and what lands after it, how busy the connection was, and where a replica waits.
func TestExchangesText(t *testing.T) {
	assert.Equal(t, `step       1   2   3     4      5     6
replica 1  ·   S0  ·     L0 S1  ·     L1 S0
  link     0%  0%  100%  50%    100%  50%
replica 2  ·   S0  ·     L0 S1  ·     L1 S0
  link     0%  0%  100%  50%    100%  50%
`, ExchangesText(exchanges(t, 2), 0))
	late := ExchangesText(exchanges(t, 1), 0)
	assert.Contains(t, late, "replica 1  ·   S0  w L0  S1")
	narrow := ExchangesText(exchanges(t, 2), 24)
	assert.Contains(t, narrow, "step       1   2   3\n")
	assert.Contains(t, narrow, "\n\nstep       4")
	for line := range strings.Lines(narrow) {
		assert.LessOrEqual(t, len([]rune(line)), 25)
	}
}

func TestSaveExchanges(t *testing.T) {
	for _, ext := range []string{".svg", ".png"} {
		path := filepath.Join(t.TempDir(), "a"+ext)
		require.NoError(t, SaveExchanges(path, "two replicas", exchanges(t, 1)))
		assert.FileExists(t, path)
		if text, err := os.ReadFile(path); ext == ".svg" && assert.NoError(t, err) {
			for _, want := range []string{"two replicas", "replica 2", "connection"} {
				assert.Contains(t, string(text), want)
			}
		}
	}
	assert.ErrorContains(t, SaveExchanges(filepath.Join(t.TempDir(), "a.gif"), "", exchanges(t, 1)), "expected .svg or .png")
}
