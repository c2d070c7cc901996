package metrics

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// run is the loss of a made-up run of n steps, with a validation every 100.
func run(n int) []Record {
	random := rand.New(rand.NewPCG(1, 1))
	var out []Record
	for i := 1; i <= n; i++ {
		loss := 1.6 + 3.9*math.Exp(-float64(i)/60) + 1.2*math.Exp(-float64(i)/500) + 0.08*random.NormFloat64()
		r := Record{i, map[string]float64{"loss": loss}}
		if i%100 == 0 {
			r.Values["val_loss"] = loss + 0.1
		}
		out = append(out, r)
	}
	return out
}

func TestPlot(t *testing.T) {
	records := run(400)
	records[200].Values["loss"] = math.NaN()
	train := FromRecords(records, "loss", "train", Curve)
	val := FromRecords(records, "val_loss", "validation", Dots)
	require.Len(t, train.X, 400)
	require.Equal(t, []float64{100, 200, 300, 400}, val.X)
	path := filepath.Join(t.TempDir(), "loss.png")
	require.NoError(t, Draw(path, Axes{}, train, val, Series{Name: "unigram entropy", Kind: Level, Y: []float64{4.6}}))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	img, err := png.Decode(f)
	require.NoError(t, err)
	assert.Equal(t, 1500, img.Bounds().Dx())
	assert.Equal(t, 900, img.Bounds().Dy())
	pixels, ok := img.(*image.RGBA)
	require.True(t, ok, "%T", img)
	for i := range 2 {
		c := palette[i]
		seen := bytes.Count(pixels.Pix, []byte{c.R, c.G, c.B, 255})
		assert.Greater(t, seen, 200, "series %d is visible", i)
	}
}

// A level outside the range of the data is not drawn, so that it does not squeeze them.
func TestLevelDoesNotSqueeze(t *testing.T) {
	dir := t.TempDir()
	draw := func(name string, levels ...float64) []byte {
		series := []Series{{Name: "loss", X: []float64{1, 2}, Y: []float64{2, 3}}}
		for _, y := range levels {
			series = append(series, Series{Name: "unigram entropy", Kind: Level, Y: []float64{y}})
		}
		path := filepath.Join(dir, name+".png")
		require.NoError(t, Draw(path, Axes{}, series...))
		return pixelsOf(t, path).Pix
	}
	plain := draw("plain")
	assert.Equal(t, plain, draw("outside", 9, 1.5, math.Inf(1), math.NaN()))
	assert.NotEqual(t, plain, draw("inside", 2.5))
}

// The loss by step has the tokens on the upper axis, and a title.
func TestPlotLoss(t *testing.T) {
	dir := t.TempDir()
	draw := func(name, title string, records []Record) *image.RGBA {
		path := filepath.Join(dir, name+".png")
		require.NoError(t, PlotLoss(path, title, "", records, math.NaN()))
		return pixelsOf(t, path)
	}
	records := run(120)
	header := func(img *image.RGBA) []byte { return img.Pix[:200*img.Stride] }
	plain := header(draw("plain", "runs/a", records))
	assert.NotEqual(t, plain, header(draw("title", "runs/b", records)))
	for i := range records {
		records[i].Values["tokens"] = float64(2048 * records[i].Step)
	}
	assert.NotEqual(t, plain, header(draw("tokens", "runs/a", records)))
	assert.ErrorIs(t, PlotLoss(filepath.Join(dir, "none.png"), "", "", nil, 2), ErrNoPoint)
}

func TestUpperAxis(t *testing.T) {
	labels := func(u Upper, limit float64) (out []string) {
		for _, tick := range u.ticks(limit) {
			out = append(out, fmt.Sprintf("%s at %g", tick.Label, tick.Value))
		}
		return out
	}
	// 1000 tokens per step.
	assert.Equal(t, []string{"0 at 0", "50k at 50", "100k at 100", "150k at 150", "200k at 200", "250k at 250"},
		labels(Upper{X: []float64{1, 100, 250}, Values: []float64{1000, 100_000, 250_000}}, 250))
	// A batch that is twice as large from step 10 on.
	assert.Equal(t, []string{"0 at 0", "5 at 5", "10 at 10", "15 at 12.5", "20 at 15", "25 at 17.5", "30 at 20"},
		labels(Upper{X: []float64{10, 20}, Values: []float64{10, 30}}, 20))
	assert.Empty(t, labels(Upper{}, 10))
	for want, x := range map[string]float64{"0": 0, "999": 999, "1k": 1000, "1.5M": 1.5e6, "200B": 2e11, "3T": 3e12, "-2k": -2000} {
		assert.Equal(t, want, shortNumber(x))
	}
}

func TestTicks(t *testing.T) {
	for _, r := range [][2]float64{{1, 1000}, {0, 500}, {1.53, 6.7}, {-3e-4, 2e-4}, {1e6, 1e6 + 10}, {0, 1e12}} {
		list := ticks{}.Ticks(r[0], r[1])
		assert.GreaterOrEqual(t, len(list), 4, r)
		assert.LessOrEqual(t, len(list), 13, r)
		for _, tick := range list {
			assert.GreaterOrEqual(t, tick.Value, r[0]-1e-9*(r[1]-r[0]))
			assert.LessOrEqual(t, tick.Value, r[1]+1e-9*(r[1]-r[0]))
			v, err := strconv.ParseFloat(tick.Label, 64)
			require.NoError(t, err)
			assert.InDelta(t, tick.Value, v, (r[1]-r[0])/20)
		}
	}
}

func TestPlotFewPoints(t *testing.T) {
	path := filepath.Join(t.TempDir(), "loss.png")
	require.NoError(t, Draw(path, Axes{}, Series{Name: "one", X: []float64{1}, Y: []float64{5}}))
	require.NoError(t, Draw(path, Axes{}, Series{Name: "flat", X: []float64{1, 2}, Y: []float64{5, 5}}, Series{Name: "none"}))
}

func TestPlotRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "loss.png")
	nan := Series{Name: "a", X: []float64{1, 2}, Y: []float64{math.NaN(), math.Inf(1)}}
	assert.ErrorContains(t, Draw(path, Axes{}, nan, Series{Kind: Level, Y: []float64{1}}), "no finite point")
	assert.ErrorIs(t, Draw(path, Axes{}), ErrNoPoint)
	assert.ErrorContains(t, Draw(path, Axes{}, Series{Name: "a", X: []float64{1}}), `series "a": found 1 values of x and 0 of y`)
	assert.ErrorContains(t, Draw(path, Axes{}, Series{Name: "a", Kind: Level}), "found 0 values, expected one for a level")
	assert.ErrorContains(t, Draw(path, Axes{}, Series{Name: "a", Kind: 9, X: []float64{1}, Y: []float64{1}}), `series "a": unknown kind`)
	assert.NoFileExists(t, path)
}

func TestSmoothed(t *testing.T) {
	few := Series{X: []float64{1, 2, 3}, Y: []float64{5, 1, 9}}
	points, err := few.points()
	require.NoError(t, err)
	assert.Equal(t, points, smoothed(points))

	records := run(2000)
	points, err = FromRecords(records, "loss", "", Curve).points()
	require.NoError(t, err)
	s := smoothed(points)
	assert.InDelta(t, points[0].Y, s[0].Y, 1e-9, "the ends are the curve's own")
	assert.InDelta(t, 1.6+3.9*math.Exp(-1)+1.2*math.Exp(-60./500), s[59].Y, 0.06, "no lag in the fall")
	assert.InDelta(t, 1.6+1.2*math.Exp(-1950./500), s[1949].Y, 0.05)
	assert.InDelta(t, points[1999].Y, s[1999].Y, 1e-9)
	wobble := func(p []float64) (sum float64) {
		for i := 1; i < len(p); i++ {
			sum += math.Abs(p[i] - p[i-1])
		}
		return sum
	}
	var raw, smooth []float64
	for i := 1000; i < 2000; i++ {
		raw, smooth = append(raw, points[i].Y), append(smooth, s[i].Y)
	}
	assert.Less(t, wobble(smooth), wobble(raw)/5)
}

// pixelsOf decodes a plot.
func pixelsOf(t *testing.T, path string) *image.RGBA {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	img, err := png.Decode(f)
	require.NoError(t, err)
	pixels, ok := img.(*image.RGBA)
	require.True(t, ok, "%T", img)
	return pixels
}

func TestLogarithmicAxis(t *testing.T) {
	dir := t.TempDir()
	axes := Axes{X: "learning rate", Y: "loss", LogX: true}
	one := Series{Name: "a", Kind: Dots, X: []float64{0.001}, Y: []float64{2}}
	require.NoError(t, Draw(filepath.Join(dir, "one.png"), axes, one), "a single x has a range too")
	three := Series{Name: "b", Kind: Dots, X: []float64{0.01, 0.1, 1}, Y: []float64{3, 2, math.Inf(1)}}
	require.NoError(t, Draw(filepath.Join(dir, "two.png"), axes, one, three))
	assert.Len(t, everyX([]Series{one, one, three}), 3, "each x once, and none without a point")
	three.X[0] = 0
	assert.ErrorContains(t, Draw(filepath.Join(dir, "zero.png"), axes, three), "found x = 0, expected positive numbers")
}

func TestBars(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bars.png")
	nan := math.NaN()
	groups := []string{"adamw", "muon"}
	require.NoError(t, Bars(path, Axes{Y: "gap"}, groups, BarSeries{"delay", []float64{0.4, -0.1}, []float64{0.01, nan}},
		BarSeries{"corrected", []float64{0.1, math.Inf(1)}, []float64{nan, nan}},
		BarSeries{"none", []float64{nan, nan}, []float64{nan, nan}}))
	area := func(i int) int {
		c := palette[i]
		return bytes.Count(pixelsOf(t, path).Pix, []byte{c.R, c.G, c.B, 255})
	}
	// Bars of heights 0.4 and 0.1 against one of 0.1, and a legend each.
	assert.InDelta(t, 5, float64(area(0))/float64(area(1)), 0.7)
	assert.Zero(t, area(2))
	assert.ErrorContains(t, Bars(path, Axes{Y: "gap"}, groups, BarSeries{"a", []float64{nan, nan}, []float64{nan, nan}}),
		"no finite height")
	assert.ErrorContains(t, Bars(path, Axes{Y: "gap"}, groups, BarSeries{"a", []float64{1}, []float64{1}}),
		"1 heights and 1 errors of 2 groups")
}
