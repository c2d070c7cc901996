package watch

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// pollEvery is how often files are looked at.
	pollEvery = 400 * time.Millisecond
	// searchEvery is how many polls pass between two searches for new runs.
	searchEvery = 5
	// keptPolls is how many polls a run stays loaded after the last stream of it has ended.
	keptPolls = 150
	// maxRuns bounds the list of runs.
	maxRuns = 2000
)

// Watcher follows the runs in some folders.
type Watcher struct {
	mu      sync.Mutex
	folders []*folder
	runs    map[string]*watched
	changed chan struct{} // closed and replaced after a change
	version int           // of the list
	polls   int
	close   bool
}

// watched is a run with those who watch it.
type watched struct {
	*run
	streams int
	idle    int // polls since the last stream
	found   bool
}

// New follows the runs in folders, each a run folder or one that holds runs. Folders may appear later.
func New(paths ...string) *Watcher {
	w := &Watcher{runs: map[string]*watched{}, changed: make(chan struct{})}
	labels := map[string]bool{}
	for _, p := range paths {
		label := filepath.Clean(p)
		if filepath.IsAbs(label) || strings.HasPrefix(label, "..") {
			label = filepath.Base(label)
		}
		for unique, n := label, 2; ; n++ {
			if !labels[unique] {
				labels[unique] = true
				w.folders = append(w.folders, &folder{path: p, label: unique})
				break
			}
			unique = label + "-" + string(rune('0'+n%10))
		}
	}
	w.Poll()
	return w
}

// Run polls until the context ends. Then it closes the folders.
func (w *Watcher) Run(ctx context.Context) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			w.mu.Lock()
			defer w.mu.Unlock()
			w.close = true
			for _, f := range w.folders {
				f.close()
			}
			return
		case <-ticker.C:
			w.Poll()
		}
	}
}

// Poll looks at all files once, and wakes up the streams if something has changed.
func (w *Watcher) Poll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.close {
		return
	}
	changed := false
	if w.polls%searchEvery == 0 {
		changed = w.search()
	}
	w.polls++
	for _, r := range w.runs {
		if r.streams > 0 {
			r.idle = 0
		} else if r.idle++; r.loaded && r.idle > keptPolls {
			r.unload()
		}
		changed = r.poll() || changed
	}
	if changed || w.polls%(5*searchEvery) == 0 { // a run that stops changes only with the time
		w.wake()
	}
}

// wake wakes up the streams.
func (w *Watcher) wake() {
	w.version++
	close(w.changed)
	w.changed = make(chan struct{})
}

// search finds runs that are new or gone.
func (w *Watcher) search() (changed bool) {
	for _, r := range w.runs {
		r.found = false
	}
	for _, f := range w.folders {
		replaced, err := f.open()
		if replaced {
			for name, r := range w.runs {
				if r.root != f.root && !r.found && strings.HasPrefix(name, f.name(".")) {
					delete(w.runs, name)
					changed = true
				}
			}
		}
		if err != nil {
			continue
		}
		for _, dir := range f.runs() {
			name := f.name(dir)
			if r := w.runs[name]; r != nil {
				r.found = true
			} else if len(w.runs) < maxRuns {
				w.runs[name] = &watched{run: newRun(name, f.root, dir), found: true}
				changed = true
			}
		}
	}
	for name, r := range w.runs {
		if !r.found {
			delete(w.runs, name)
			changed = true
		}
	}
	return changed
}

// newest are the names of the n runs that were written last, the newest first; all with n 0.
func (w *Watcher) newest(n int) (names []string) {
	all := make([]*watched, 0, len(w.runs))
	for _, r := range w.runs {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *watched) int { return cmp.Or(b.active.Compare(a.active), cmp.Compare(a.name, b.name)) })
	if n > 0 && len(all) > n {
		all = all[:n]
	}
	for _, r := range all {
		names = append(names, r.name)
	}
	return names
}

// watch loads runs and keeps them loaded until release. Names of runs that do not exist are ignored.
func (w *Watcher) watch(names []string) (held map[string]*watched) {
	held = map[string]*watched{}
	for _, name := range names {
		if r := w.runs[name]; r != nil && held[name] == nil {
			held[name] = r
			r.streams++
			if !r.loaded {
				r.load()
				r.poll()
			}
		}
	}
	return held
}

// release ends what watch began.
func (w *Watcher) release(held map[string]*watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range held {
		r.streams--
	}
}

// summaries describes all runs, those written last first.
func (w *Watcher) summaries() []Summary {
	now := time.Now()
	list := []Summary{}
	for _, name := range w.newest(0) {
		list = append(list, w.runs[name].summary(now))
	}
	return list
}
