package watch

import (
	"math"
	"slices"
	"strconv"

	"github.com/gpupipe/gpupipe/pipeline/metrics"
)

// maxCells bounds the values of a table: 64 MiB.
const maxCells = 8 << 20

// maxColumns bounds the columns of a table. Others are ignored.
const maxColumns = 4096

// table has a row for each step and a column for each measurement. Steps ascend. A value that was not measured is
// missing; one that was measured may be NaN or infinite.
type table struct {
	steps   []float64
	columns [][]float64
	names   []string
	index   map[string]int
	thinned bool // rows were dropped; the extremes are still there
	changes int  // grows with every value
	timed   int  // rows whose elapsed time is final
	cells   int  // a table with more values is thinned
}

// missing stands for a value that was not measured: a NaN that no computation returns.
var missing = math.Float64frombits(0x7ff8_0000_6a70_1d1e)

func isMissing(x float64) bool { return math.Float64bits(x) == math.Float64bits(missing) }

func newTable() *table { return &table{index: map[string]int{}, cells: maxCells} }

// set adds measurements of a step, and returns its row. A step that is below the last one and has no row begins a later
// part of the run again: the rows from there on are dropped.
func (t *table) set(step float64, values []metrics.Parsed) (row int) {
	t.changes++
	row = len(t.steps)
	if row > 0 && step <= t.steps[row-1] {
		var found bool
		if row, found = slices.BinarySearch(t.steps, step); !found && !t.thinned {
			t.truncate(row)
		} else if row == len(t.steps) {
			row--
		}
	}
	if row == len(t.steps) {
		t.steps = append(t.steps, step)
		for i := range t.columns {
			t.columns[i] = append(t.columns[i], missing)
		}
	}
	for _, v := range values {
		if c := t.column(v.Name); c != nil {
			c[row] = v.Value
		}
	}
	if len(t.steps)*(len(t.columns)+1) > t.cells {
		t.thin()
	}
	return row
}

// truncate drops the rows from one on.
func (t *table) truncate(row int) {
	t.timed = min(t.timed, row)
	t.steps = t.steps[:row]
	for i := range t.columns {
		t.columns[i] = t.columns[i][:row]
	}
}

// column is a column by its name, which is added if needed; nil if there are too many.
func (t *table) column(name []byte) []float64 {
	i, ok := t.index[string(name)]
	if !ok {
		if len(t.columns) == maxColumns {
			return nil
		}
		i = len(t.columns)
		t.index[string(name)] = i
		t.names = append(t.names, string(name))
		fresh := make([]float64, len(t.steps), max(cap(t.steps), 1))
		for j := range fresh {
			fresh[j] = missing
		}
		t.columns = append(t.columns, fresh)
	}
	return t.columns[i]
}

// last is the newest value of a column; missing without one.
func (t *table) last(name string) float64 {
	if i, ok := t.index[name]; ok {
		for _, v := range slices.Backward(t.columns[i]) {
			if !isMissing(v) {
				return v
			}
		}
	}
	return missing
}

// get is the value of a column in a row; missing without one.
func (t *table) get(name string, row int) float64 {
	if i, ok := t.index[name]; ok {
		return t.columns[i][row]
	}
	return missing
}

// thin halves the rows. The smallest and the largest value of each column among four rows stay.
func (t *table) thin() {
	steps, columns := t.sample(0, len(t.steps), len(t.steps)/2)
	t.steps, t.columns, t.thinned, t.timed = steps, columns, true, 0
}

// elapse fills in the column of the elapsed time: the seconds since the first step. Without clock times, it adds up the
// times that the steps took at their speed.
func (t *table) elapse() {
	clock, rate, tokens := t.column([]byte("time")), t.column([]byte("tokens_per_s")), t.column([]byte("tokens"))
	elapsed := t.column([]byte(elapsedColumn))
	if clock == nil || rate == nil || tokens == nil || elapsed == nil {
		return
	}
	began := slices.IndexFunc(clock, func(x float64) bool { return !math.IsNaN(x) })
	for i := t.timed; i < len(t.steps); i++ {
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
	t.timed = max(0, len(t.steps)-lateRows)
}

// elapsedColumn is the column of the time since the first step, in seconds.
const elapsedColumn = "elapsed"

// lateRows are the rows at the end to which measurements may still be added, since they come from two files.
const lateRows = 2

// sample is at most n rows of those from lo to hi. With more rows than n, they are divided into n/2 buckets of
// consecutive rows, and each bucket becomes two rows: of each column, the smallest and the largest finite value in the
// order in which they come. So no extreme is lost, and a value is shown at most a bucket beside its step. A value that
// is not finite takes the place of the smallest.
func (t *table) sample(lo, hi, n int) (steps []float64, columns [][]float64) {
	columns = make([][]float64, len(t.columns))
	if hi-lo <= n {
		for i, c := range t.columns {
			columns[i] = slices.Clone(c[lo:hi])
		}
		return slices.Clone(t.steps[lo:hi]), columns
	}
	buckets := max(1, n/2)
	edge := func(b int) int { return lo + int(int64(hi-lo)*int64(b)/int64(buckets)) }
	for b := range buckets {
		steps = append(steps, t.steps[edge(b)], t.steps[edge(b+1)-1])
	}
	for i, c := range t.columns {
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
