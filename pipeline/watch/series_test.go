package watch

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// put sets a column in a row.
func put(s *series, step float64, name string, number float64) int {
	return s.set(step, []metrics.Parsed{{Name: []byte(name), Value: number}})
}

func TestSeriesJoinsFilesByStep(t *testing.T) {
	x := newSeries()
	for step := range 5 {
		put(x, float64(step+1), "loss", 5-float64(step))
	}
	put(x, 4, "busy", 0.5)
	assert.Equal(t, 0.5, x.get("busy", 3))
	assert.True(t, math.IsNaN(x.get("busy", 4)))
	assert.Equal(t, 0.5, x.last("busy"))
	assert.Equal(t, 1.0, x.last("loss"))
	assert.True(t, math.IsNaN(x.last("nothing")))
	put(x, 2.5, "loss", 9)
	assert.Equal(t, []float64{1, 2, 2.5}, x.steps, "a step in between begins a part of the run again")
}

// A thinned series has the extremes of each column, in the order in which they come.
func TestSampleKeepsExtremes(t *testing.T) {
	x := newSeries()
	const rows = 100_000
	for i := range rows {
		put(x, float64(i+1), "loss", 2+math.Sin(float64(i)/1000))
	}
	put(x, 54_321, "loss", 99)
	put(x, 77_777, "loss", -99)
	put(x, 10, "val_loss", 3)
	steps, columns := x.sample(0, rows, 2000)
	require.Len(t, steps, 2000)
	assert.True(t, slices.IsSorted(steps))
	assert.Equal(t, []float64{1, rows}, []float64{steps[0], steps[1999]})
	for want, near := range map[float64]float64{99: 54_321, -99: 77_777} {
		at := slices.Index(columns[0], want)
		require.GreaterOrEqual(t, at, 0, "%g is shown", want)
		assert.InDelta(t, near, steps[at], rows/1000, "at its place")
	}
	assert.Equal(t, 3.0, columns[1][0])
	assert.Equal(t, 1999, len(slices.DeleteFunc(columns[1], func(v float64) bool { return !isMissing(v) })), "a single value is shown once")
	steps, columns = x.sample(100, 110, 2000)
	assert.Len(t, steps, 10)
	assert.Len(t, columns[0], 10)
}

func TestExtremes(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct{ in, want []float64 }{{[]float64{1, 3, 2}, []float64{1, 3}}, {[]float64{3, missing, 1}, []float64{3, 1}},
		{[]float64{missing, 2, missing}, []float64{2, missing}},
		{[]float64{missing}, []float64{missing, missing}}, {[]float64{3, 1, nan}, []float64{3, nan}},
		{[]float64{math.Inf(1), 2, nan}, []float64{math.Inf(1), 2}}, {[]float64{nan}, []float64{nan, missing}}} {
		first, second := extremes(c.in)
		assert.Equal(t, fmt.Sprint(c.want), fmt.Sprint([]float64{first, second}), "%v", c.in)
	}
}

func TestSeriesIsBounded(t *testing.T) {
	x := newSeries()
	for i := range maxColumns + 10 {
		put(x, 1, fmt.Sprint("column", i), 1)
	}
	assert.Len(t, x.columns, maxColumns)

	x = newSeries()
	x.cells = 1000
	for i := range 5000 {
		put(x, float64(i+1), "loss", float64(i%1234))
	}
	assert.LessOrEqual(t, 2*len(x.steps), x.cells)
	assert.True(t, x.thinned)
	assert.Equal(t, 1233.0, slices.Max(slices.DeleteFunc(x.columns[0], math.IsNaN)), "extremes stay")
	assert.Equal(t, 63.0, x.last("loss"))
}

func TestElapsed(t *testing.T) {
	x := newSeries()
	for i := range 4 {
		x.set(float64(i+1), []metrics.Parsed{{Name: []byte("tokens"), Value: float64(100 * (i + 1))},
			{Name: []byte("tokens_per_s"), Value: 50}})
	}
	x.elapse()
	assert.Equal(t, []float64{2, 4, 6, 8}, x.columns[x.index[elapsedColumn]], "without a clock, by the speed")
	for i := range 4 {
		put(x, float64(i+1), "time", 1.7e9+float64(10*i))
	}
	x.timed = 0
	x.elapse()
	assert.Equal(t, []float64{0, 10, 20, 30}, x.columns[x.index[elapsedColumn]])
}

func TestAppendNumbers(t *testing.T) {
	b := appendNumbers(nil, []float64{1, -0.5, missing, math.NaN(), math.Inf(-1), 1e300, 123456.789, 0}, 7)
	assert.Equal(t, `[1,-0.5,null,"NaN","-Infinity",1e+300,123456.8,0]`, string(b))
	assert.True(t, json.Valid(b))
}

// BenchmarkLoad reads 100,000 steps.
func BenchmarkLoad(b *testing.B) {
	var text strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&text, `{"step":%d,"tokens":%d,"loss":%g,"lr":0.0003,"grad_norm":1.25,"tokens_per_s":123456.7,"staleness":0}`+"\n",
			i+1, 2048*(i+1), 2+1/float64(i+1))
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	for b.Loop() {
		x, p := newSeries(), metrics.Parser{}
		for _, line := range lines {
			step, values, err := p.Parse([]byte(line))
			if err != nil {
				b.Fatal(err)
			}
			x.set(step, values)
		}
		x.sample(0, len(x.steps), maxPoints)
	}
}
