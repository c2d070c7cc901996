// Package units writes amounts of memory, everywhere in the same units.
package units

import "fmt"

// Bytes writes a number of bytes with four digits in B, KiB, MiB or GiB.
func Bytes(n int64) string {
	x := float64(n)
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if x < 1024 && x > -1024 {
			return fmt.Sprintf("%.4g %s", x, unit)
		}
		x /= 1024
	}
	if x >= 10000 {
		return fmt.Sprintf("%.0f GiB", x)
	}
	return fmt.Sprintf("%.4g GiB", x)
}
