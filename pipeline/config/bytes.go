package config

import (
	"fmt"
	"regexp"
	"strconv"
)

var bytesText = regexp.MustCompile(`^(\d+(?:\.\d+)?) ?(|B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)$`)

// ParseBytes reads a number of bytes, as in 24GiB; "" is 0.
func ParseBytes(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	m := bytesText.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("bytes, as in 24GiB or 8000MB")
	}
	x, err := strconv.ParseFloat(m[1], 64)
	x *= map[string]float64{"": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
		"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[m[2]]
	if err != nil || x < 1 || x > 1<<60 {
		return 0, fmt.Errorf("from 1 byte to 2^60")
	}
	return int64(x), nil
}
