package device

import (
	"fmt"
	"strconv"
	"strings"
)

// CPUBackend is the backend of names of CPUs that run native code.
const CPUBackend = "cpu"

// MaxThreads is the largest number of threads of a CPU.
const MaxThreads = 1024

// Name is the name of a device as users write it: BACKEND:INDEX/THREADS, as in webgpu:0 or cpu:0/4. Index and threads
// are optional. Without a backend it is the default device.
type Name struct {
	Backend  string
	Index    int
	Numbered bool // the name has an index
	Threads  int  // of a CPU; 0: as many as the process may use cores
}

// ParseName splits a name. It accepts any backend.
func ParseName(name string) (n Name, err error) {
	rest, threads, threaded := strings.Cut(name, "/")
	if threaded {
		if n.Threads, err = strconv.Atoi(threads); err != nil || n.Threads < 1 {
			return Name{}, fmt.Errorf("device %q: found %q threads, expected a positive integer as in cpu:0/4", name, threads)
		}
		if n.Threads > MaxThreads {
			return Name{}, fmt.Errorf("device %q: found %d threads, expected 1 to %d", name, n.Threads, MaxThreads)
		}
	}
	var index string
	n.Backend, index, n.Numbered = strings.Cut(rest, ":")
	if threaded && n.Backend != "" && n.Backend != CPUBackend {
		return Name{}, fmt.Errorf("device %q: found a number of threads, which only cpu:0 has", name)
	}
	if n.Numbered {
		if n.Index, err = strconv.Atoi(index); err != nil || n.Index < 0 {
			return Name{}, fmt.Errorf("device %q: expected a name such as webgpu:0", name)
		}
	}
	return n, nil
}

// Described returns the words for a device of that name in a sentence.
func Described(name string) string {
	if n, err := ParseName(name); err == nil && n.Backend == "" {
		return "the default device"
	}
	return "device " + strconv.Quote(name)
}

// WithThreads returns the name of the same device with a number of threads.
func WithThreads(name string, threads int) string { return fmt.Sprint(name, "/", threads) }
