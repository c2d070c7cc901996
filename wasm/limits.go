package wasm

import "time"

// Limits bound what an instance may use. Zero means the default.
type Limits struct {
	MemoryPages   uint32        // pages of 64 KiB; default 4,096 (256 MiB), at most 65,536
	TableElements uint32        // default 65,536
	Budget        int64         // units of work of a call, and of opening (package wasm/meter defines the unit); default 10,000,000,000
	Deadline      time.Duration // wall time of a call, and of opening an instance; default 30 s
	Depth         int32         // nested calls; default 1,900, which is less than wazero's interpreter supports
	LogBytes      int           // log text of a call, the rest is dropped; default 65,536
	Unmetered     bool          // do not bound work, time and depth, to measure the cost of metering: nothing ends an endless loop
}

// WithDefaults fills in defaults for zero values.
func (l Limits) WithDefaults() Limits {
	set(&l.MemoryPages, 4096)
	set(&l.TableElements, 1<<16)
	set(&l.Budget, 10_000_000_000)
	set(&l.Deadline, 30*time.Second)
	set(&l.Depth, 1900)
	set(&l.LogBytes, 1<<16)
	return l
}

func set[T comparable](v *T, byDefault T) {
	var zero T
	if *v == zero {
		*v = byDefault
	}
}

// check returns an error if the limits are invalid.
func (l Limits) check() error {
	switch {
	case l.MemoryPages > 1<<16:
		return halted(Refused, "memory limit: found %d pages, expected at most 65536 (4 GiB)", l.MemoryPages)
	case l.Budget < 0 || l.Deadline < 0 || l.Depth < 0 || l.LogBytes < 0:
		return halted(Refused, "limits: found a negative one in %+v, expected at least 0", l)
	}
	return nil
}
