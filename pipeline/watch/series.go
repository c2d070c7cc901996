package watch

import (
	"math"
	"slices"
	"strconv"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// maxCells bounds the values of a series: 64 MiB.
const maxCells = 8 << 20

// maxColumns bounds the columns of a series. Others are ignored.
const maxColumns = 4096

// series is the measurements of a run: a row for each step, in ascending order, and a column for each measurement. A
// value that was not measured is missing; one that was measured may be NaN or infinite.
type series struct {
	steps   []float64
	columns [][]float64
	names   []string
	index   map[string]int
	thinned bool // rows were dropped; the extremes are still there
	changes int  // grows with every value
	timed   int  // rows whose elapsed time is final
	cells   int  // a series with more values is thinned
}

// missing stands for a value that was not measured: a NaN that no computation returns.
var missing = math.Float64frombits(0x7ff8_0000_6a70_1d1e)

func isMissing(x float64) bool { return math.Float64bits(x) == math.Float64bits(missing) }

func newSeries() *series { return &series{index: map[string]int{}, cells: maxCells} }

// set adds measurements of a step, and returns its row. A step that is below the last one and has no row begins a later
// part of the run again: the rows from there on are dropped.
func (s *series) set(step float64, values []metrics.Parsed) (row int) {
	s.changes++
	row = len(s.steps)
	if row > 0 && step <= s.steps[row-1] {
		var found bool
		if row, found = slices.BinarySearch(s.steps, step); !found && !s.thinned {
			s.truncate(row)
		} else if row == len(s.steps) {
			row--
		}
	}
	if row == len(s.steps) {
		s.steps = append(s.steps, step)
		for i := range s.columns {
			s.columns[i] = append(s.columns[i], missing)
		}
	}
	for _, v := range values {
		if c := s.column(v.Name); c != nil {
			c[row] = v.Value
		}
	}
	if len(s.steps)*(len(s.columns)+1) > s.cells {
		s.thin()
	}
	return row
}

// truncate drops the rows from one on.
func (s *series) truncate(row int) {
	s.timed = min(s.timed, row)
	s.steps = s.steps[:row]
	for i := range s.columns {
		s.columns[i] = s.columns[i][:row]
	}
}

// column is a column by its name, which is added if needed; nil if there are too many.
func (s *series) column(name []byte) []float64 {
	i, ok := s.index[string(name)]
	if !ok {
		if len(s.columns) == maxColumns {
			return nil
		}
		i = len(s.columns)
		s.index[string(name)] = i
		s.names = append(s.names, string(name))
		fresh := make([]float64, len(s.steps), max(cap(s.steps), 1))
		for j := range fresh {
			fresh[j] = missing
		}
		s.columns = append(s.columns, fresh)
	}
	return s.columns[i]
}

// last is the newest value of a column; missing without one.
func (s *series) last(name string) float64 {
	if i, ok := s.index[name]; ok {
		for _, v := range slices.Backward(s.columns[i]) {
			if !isMissing(v) {
				return v
			}
		}
	}
	return missing
}

// get is the value of a column in a row; missing without one.
func (s *series) get(name string, row int) float64 {
	if i, ok := s.index[name]; ok {
		return s.columns[i][row]
	}
	return missing
}

// tokensPerStep is the number of tokens of the last step; 0 if it is not known.
func (s *series) tokensPerStep() float64 {
	if s == nil || len(s.steps) < 2 {
		return 0
	}
	n := len(s.steps)
	if d := (s.get("tokens", n-1) - s.get("tokens", n-2)) / (s.steps[n-1] - s.steps[n-2]); d > 0 {
		return d
	}
	return 0
}

// thin halves the rows. The smallest and the largest value of each column among four rows stay.
func (s *series) thin() {
	steps, columns := s.sample(0, len(s.steps), len(s.steps)/2)
	s.steps, s.columns, s.thinned, s.timed = steps, columns, true, 0
}

// elapse fills in the column of the elapsed time: the seconds since the first step. Without clock times, it adds up the
// times that the steps took at their speed.
func (s *series) elapse() {
	clock, rate, tokens := s.column([]byte("time")), s.column([]byte("tokens_per_s")), s.column([]byte("tokens"))
	elapsed := s.column([]byte(elapsedColumn))
	if clock == nil || rate == nil || tokens == nil || elapsed == nil {
		return
	}
	began := slices.IndexFunc(clock, func(x float64) bool { return !math.IsNaN(x) })
	for i := s.timed; i < len(s.steps); i++ {
		before, done := 0.0, 0.0
		if i > 0 {
			before, done = elapsed[i-1], tokens[i-1]
		}
		elapsed[i] = before
		if x := (tokens[i] - done) / rate[i]; x > 0 && !math.IsInf(x, 0) {
			elapsed[i] += x
		}
		if x := clock[i]; began >= 0 && !math.IsNaN(x) {
			elapsed[i] = max(before, x-clock[began])
		}
	}
	s.timed = max(0, len(s.steps)-lateRows)
}

// elapsedColumn is the column of the time since the first step, in seconds.
const elapsedColumn = "elapsed"

// lateRows are the rows at the end to which measurements may still be added, since they come from two files.
const lateRows = 2

// sample is at most n rows of those from lo to hi. With more rows than n, they are divided into n/2 buckets of
// consecutive rows, and each bucket becomes two rows: of each column, the smallest and the largest finite value in the
// order in which they come. So no extreme is lost, and a value is shown at most a bucket beside its step. A value that
// is not finite takes the place of the smallest.
func (s *series) sample(lo, hi, n int) (steps []float64, columns [][]float64) {
	columns = make([][]float64, len(s.columns))
	if hi-lo <= n {
		for i, c := range s.columns {
			columns[i] = slices.Clone(c[lo:hi])
		}
		return slices.Clone(s.steps[lo:hi]), columns
	}
	buckets := max(1, n/2)
	edge := func(b int) int { return lo + int(int64(hi-lo)*int64(b)/int64(buckets)) }
	for b := range buckets {
		steps = append(steps, s.steps[edge(b)], s.steps[edge(b+1)-1])
	}
	for i, c := range s.columns {
		columns[i] = make([]float64, 0, 2*buckets)
		for b := range buckets {
			first, second := extremes(c[edge(b):edge(b+1)])
			columns[i] = append(columns[i], first, second)
		}
	}
	return steps, columns
}

// extremes are the smallest and the largest finite value, in the order in which they come. The first value that is not
// finite takes the place of the smallest. A single value is the first; the second is missing then.
func extremes(values []float64) (first, second float64) {
	least, most, odd := -1, -1, -1
	for i, v := range values {
		switch {
		case isMissing(v):
			continue
		case math.IsNaN(v) || math.IsInf(v, 0):
			if odd < 0 {
				odd = i
			}
			continue
		}
		if least < 0 || v < values[least] {
			least = i
		}
		if most < 0 || v > values[most] {
			most = i
		}
	}
	if odd >= 0 {
		least = odd
	}
	switch {
	case least < 0:
		return missing, missing
	case least == most || most < 0:
		return values[least], missing
	case least < most:
		return values[least], values[most]
	}
	return values[most], values[least]
}

// appendNumbers writes numbers as a JSON array with so many significant digits, or with all of them if digits is -1.
// Missing numbers are null. Numbers that are not finite are texts, as in metrics.jsonl.
func appendNumbers(b []byte, numbers []float64, digits int) []byte {
	b = append(b, '[')
	for i, x := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		switch {
		case isMissing(x):
			b = append(b, "null"...)
		case math.IsNaN(x) || math.IsInf(x, 0):
			b = append(b, jsonNumberOf(x)...)
		case x == math.Trunc(x) && math.Abs(x) < 1<<53:
			b = strconv.AppendInt(b, int64(x), 10)
		default:
			b = strconv.AppendFloat(b, x, 'g', digits, 64)
		}
	}
	return append(b, ']')
}

// jsonNumberOf is a number in JSON, as metrics.jsonl has it.
func jsonNumberOf(x float64) []byte {
	text, err := metrics.Number(x).MarshalJSON()
	if err != nil {
		panic(err) // never fails
	}
	return text
}
