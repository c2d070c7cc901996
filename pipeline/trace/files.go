package trace

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// FileName is the file of a run's trace. A run that is resumed renames the file to [EarlierName] and begins a new one.
const FileName = "trace.json"

// EarlierName is the file of the n-th trace of a run that was resumed, counted from 1.
func EarlierName(n int) string { return fmt.Sprintf("trace.%d.json", n) }

// Earlier returns the numbers of the earlier traces in a run folder, in ascending order.
func Earlier(dir string) (numbers []int, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		middle := strings.TrimSuffix(strings.TrimPrefix(e.Name(), "trace."), ".json")
		if n, err := strconv.Atoi(middle); err == nil && n > 0 && e.Name() == EarlierName(n) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, err
}
