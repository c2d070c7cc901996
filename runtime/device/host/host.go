// Package host reports the memory of the machine that devices share, and maps memory that devices can import.
package host

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Memory returns the bytes of memory that this process may use, or 0 if the system does not report it.
func Memory() int64 {
	total := int64(0)
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
			var kib int64
			if n, _ := fmt.Sscanf(sc.Text(), "MemTotal: %d kB", &kib); n == 1 {
				total = kib << 10
				break
			}
		}
	}
	if b, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && (total == 0 || n < total) {
			total = n
		}
	}
	return total
}
