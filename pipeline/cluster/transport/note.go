package transport

import (
	"fmt"
	"sync"
	"time"
)

const (
	noteInterval = 10 * time.Second // between two equal notes
	maxNotes     = 256              // that are remembered
)

// notes passes messages to the user and drops repetitions, so that an attacker cannot fill a log.
type notes struct {
	note func(format string, args ...any)
	mu   sync.Mutex
	last map[string]time.Time
}

func (n *notes) add(format string, args ...any) {
	if n.note == nil {
		return
	}
	text := fmt.Sprintf(format, args...)
	n.mu.Lock()
	last, ok := n.last[text]
	repeated := ok && time.Since(last) < noteInterval
	if !repeated {
		if n.last == nil || len(n.last) >= maxNotes {
			n.last = map[string]time.Time{}
		}
		n.last[text] = time.Now()
	}
	n.mu.Unlock()
	if !repeated {
		n.note("%s", text)
	}
}
