package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpupipe/gpupipe/runtime/exec"
)

// Notes tells, after Load, what is slower than it might be for want of memory.
func (e *Engine) Notes() (notes []string) {
	if e.unshared > 0 {
		notes = append(notes, fmt.Sprintf("devices share no more than a quarter of the host's memory, in which %d bytes of what passes between them find no room: "+
			"these take the slower way through the memory of each", e.unshared))
	}
	return notes
}

// Untuned tells, device by device, where the kernels are not those that were chosen by timing, for want of memory.
func (e *Engine) Untuned() (notes []string) {
	var devices []string
	untuned := map[string][]*rank{}
	for _, l := range e.ranks {
		if name := l.dev.Info().Name; l.planned.Untuned != nil {
			if untuned[name] == nil {
				devices = append(devices, name)
			}
			untuned[name] = append(untuned[name], l)
		}
	}
	for _, name := range devices {
		notes = append(notes, fmt.Sprintf("%s: %s", name, scarce(untuned[name])))
	}
	return notes
}

// scarce tells what keeps lines of one device from the kernels that are the fastest.
func scarce(lines []*rank) string {
	var names []string
	missing := int64(0)
	for _, l := range lines {
		names = append(names, l.name())
		if s := (*exec.Shortage)(nil); errors.As(l.planned.Untuned, &s) {
			missing = max(missing, s.Needed.Total-s.Available)
		}
	}
	why := fmt.Sprintf("need %d bytes of memory more than there are", missing)
	if missing == 0 { // one array is too large, and not the whole
		why = fmt.Sprintf("do not fit: %v", lines[0].planned.Untuned)
	}
	return fmt.Sprintf("the fastest kernels %s (%s)", why, strings.Join(names, ", "))
}
