// Package host reports the memory of the machine that devices share, and maps memory that devices can import.
package host

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
)

// Memory returns the bytes of memory that this process may use, or 0 if the system does not report it.
func Memory() int64 { return memory(os.DirFS("/")) }

// memory is the memory of the machine, or the smallest limit of the control groups of the process: beyond it the
// process is ended, or slowed down until it hardly moves (memory.high).
func memory(root fs.FS) (bytes int64) {
	bound := func(n int64) {
		if n > 0 && (bytes == 0 || n < bytes) {
			bytes = n
		}
	}
	bound(installed(root))
	limit := func(name string) {
		if w := words(root, name); len(w) == 1 {
			if n, err := strconv.ParseInt(w[0], 10, 64); err == nil { // and not "max"
				bound(n)
			}
		}
	}
	limit("sys/fs/cgroup/memory.max") // of a container whose group is not listed
	eachGroup(root, func(controllers []string, dir string) {
		switch {
		case controllers == nil:
			limit("sys/fs/cgroup" + dir + "/memory.max")
			limit("sys/fs/cgroup" + dir + "/memory.high")
		case slices.Contains(controllers, "memory"):
			limit("sys/fs/cgroup/memory" + dir + "/memory.limit_in_bytes")
		}
	})
	return bytes
}

// installed is the memory of the machine; 0: not known.
func installed(root fs.FS) int64 {
	b, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		var kib int64
		if n, _ := fmt.Sscanf(sc.Text(), "MemTotal: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}
