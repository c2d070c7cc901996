package trace

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// PartName is the file of an earlier part of a run that was resumed, counted from 1. The present one is trace.json.
func PartName(n int) string { return fmt.Sprintf("trace.%d.json", n) }

// Parts are the numbers of the earlier parts that a run folder has, in their order.
func Parts(dir string) (numbers []int, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		middle := strings.TrimSuffix(strings.TrimPrefix(e.Name(), "trace."), ".json")
		if n, err := strconv.Atoi(middle); err == nil && n > 0 && e.Name() == PartName(n) {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, err
}
