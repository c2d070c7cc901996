package identity

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	failureBurst    = 10              // failed attempts of one address that are answered at once
	failureInterval = 3 * time.Second // until the next one is
	maxLimited      = 4096            // addresses that are remembered
)

// failureLimiter slows down addresses whose attempts fail. It counts failures only, so that many members may join from
// behind one address.
type failureLimiter struct {
	mu        sync.Mutex
	addresses map[netip.Prefix]*rate.Limiter
}

// prefixOf returns what counts as one address: an IPv4 address, or the /64 of an IPv6 address, which one host may own.
func prefixOf(address netip.Addr) netip.Prefix {
	address = address.Unmap().WithZone("")
	bits := 32
	if address.Is6() {
		bits = 64
	}
	prefix, _ := address.Prefix(bits)
	return prefix
}

// wait returns how long an address has to wait before its next attempt; 0: it may try now.
func (l *failureLimiter) wait(address netip.Addr, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.addresses[prefixOf(address)]
	if limiter == nil {
		return 0
	}
	missing := 1 - limiter.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing * float64(failureInterval))
}

// failed counts a failed attempt.
func (l *failureLimiter) failed(address netip.Addr, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	prefix := prefixOf(address)
	limiter := l.addresses[prefix]
	if limiter == nil {
		l.forget(now)
		limiter = rate.NewLimiter(rate.Every(failureInterval), failureBurst)
		l.addresses[prefix] = limiter
	}
	limiter.AllowN(now, 1)
}

// forget makes room for an address: it drops those that may try at full rate again, or any if there are none.
func (l *failureLimiter) forget(now time.Time) {
	if l.addresses == nil {
		l.addresses = map[netip.Prefix]*rate.Limiter{}
	}
	if len(l.addresses) < maxLimited {
		return
	}
	for prefix, limiter := range l.addresses {
		if limiter.TokensAt(now) >= failureBurst {
			delete(l.addresses, prefix)
		}
	}
	for prefix := range l.addresses {
		if len(l.addresses) < maxLimited {
			break
		}
		delete(l.addresses, prefix)
	}
}

// LimitNotes returns a function that passes lines on to note, at most about ten a second, so that refused strangers do
// not fill a log. It says how many lines it dropped. A nil note is allowed.
func LimitNotes(note func(format string, args ...any)) func(format string, args ...any) {
	if note == nil {
		return func(string, ...any) {}
	}
	limiter := rate.NewLimiter(10, 40)
	var mu sync.Mutex
	dropped := 0
	return func(format string, args ...any) {
		mu.Lock()
		if !limiter.Allow() {
			dropped++
			mu.Unlock()
			return
		}
		n := dropped
		dropped = 0
		mu.Unlock()
		if n > 0 {
			note("%s (%d lines before this one were dropped)", fmt.Sprintf(format, args...), n)
			return
		}
		note(format, args...)
	}
}
