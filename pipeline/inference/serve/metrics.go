package serve

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// metrics counts what the server does. It serves the counts in the text format of Prometheus.
type metrics struct {
	scheduler *scheduler

	mu       sync.Mutex
	requests map[string]uint64 // by labels
	prompt   uint64            // tokens of prompts
	made     uint64            // tokens made
	first    histogram         // seconds to the first token of a sequence
	whole    histogram         // seconds of a sequence
}

// bounds are the upper bounds of histograms in seconds.
var bounds = [...]float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300}

// histogram counts durations up to each bound.
type histogram struct {
	counts [len(bounds)]uint64
	sum    float64
	all    uint64
}

func (h *histogram) add(d time.Duration) {
	s := d.Seconds()
	h.sum += s
	h.all++
	for i, b := range bounds {
		if s <= b {
			h.counts[i]++
		}
	}
}

// ended counts a sequence that has left its slot.
func (m *metrics) ended(q *sequence) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prompt += uint64(min(q.prompt, q.fed+1))
	m.made += uint64(q.drawn)
	if q.drawn > 0 {
		m.first.add(q.firstAt.Sub(q.submitted))
	}
	m.whole.add(time.Since(q.submitted))
}

// counted counts the requests of a handler by path and status.
func (m *metrics) counted(path string, h http.Handler) http.Handler {
	path = strings.TrimSuffix(path, "{$}")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(c, r)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.requests[fmt.Sprintf("path=%q,code=\"%d\"", path, c.status)]++
	})
}

// statusWriter keeps the status of a response.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap serves http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (m *metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	running, waiting := m.scheduler.counts()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	m.mu.Lock()
	defer m.mu.Unlock()
	head := func(name, kind, help string) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	}
	value := func(name, kind, help string, v uint64) {
		head(name, kind, help)
		fmt.Fprintf(w, "%s %d\n", name, v)
	}
	head("gpupipe_requests_total", "counter", "HTTP requests that have ended.")
	for _, labels := range slices.Sorted(maps.Keys(m.requests)) {
		fmt.Fprintf(w, "gpupipe_requests_total{%s} %d\n", labels, m.requests[labels])
	}
	value("gpupipe_prompt_tokens_total", "counter", "Tokens of the prompts of texts that have ended.", m.prompt)
	value("gpupipe_generated_tokens_total", "counter", "Tokens made for texts that have ended.", m.made)
	value("gpupipe_texts_running", "gauge", "Texts that have a slot.", uint64(running))
	value("gpupipe_texts_waiting", "gauge", "Texts that wait for a slot.", uint64(waiting))
	value("gpupipe_slots", "gauge", "Texts that can be continued at once.", uint64(len(m.scheduler.slots)))
	head("gpupipe_first_token_seconds", "histogram", "Time from a request to the first token of each of its texts.")
	m.first.write(w, "gpupipe_first_token_seconds")
	head("gpupipe_text_seconds", "histogram", "Time from a request to the end of each of its texts.")
	m.whole.write(w, "gpupipe_text_seconds")
}

func (h *histogram) write(w io.Writer, name string) {
	for i, b := range bounds {
		fmt.Fprintf(w, "%s_bucket{le=\"%g\"} %d\n", name, b, h.counts[i])
	}
	fmt.Fprintf(w, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %g\n%s_count %d\n", name, h.all, name, h.sum, name, h.all)
}
