package watch

import (
	"cmp"
	"context"
	"fmt"
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
	// restPolls is how many polls pass between two looks at a run that no page shows.
	restPolls = 5
	// listedRuns is how many runs a page lists.
	listedRuns = 200
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
}

// New follows the runs in folders, each a run folder or one that holds runs. Folders may appear later.
func New(paths ...string) *Watcher {
	w := &Watcher{runs: map[string]*watched{}, changed: make(chan struct{})}
	labels := map[string]bool{}
	for _, p := range paths {
		label := unusedLabel(p, labels)
		labels[label] = true
		w.folders = append(w.folders, &folder{path: p, label: label})
	}
	w.Poll()
	return w
}

// unusedLabel is the name of a folder on the page: its path below the working directory, or the end of its path, of as
// many parts as it takes to be unlike the others.
func unusedLabel(folder string, used map[string]bool) string {
	label := filepath.Clean(folder)
	if filepath.IsAbs(label) || strings.HasPrefix(label, "..") {
		parts := strings.Split(filepath.ToSlash(label), "/")
		for n := len(parts) - 1; n >= 0 && parts[n] != "" && parts[n] != ".."; n-- {
			if label = strings.Join(parts[n:], "/"); !used[label] {
				return label
			}
		}
	}
	for n, unique := 2, label; ; n++ {
		if !used[unique] {
			return unique
		}
		unique = fmt.Sprintf("%s-%d", label, n)
	}
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
		if r.loaded || r.configAt == nil || w.polls%restPolls == 0 {
			changed = r.poll() || changed
		}
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
	all := map[string]found{}
	for _, f := range w.folders {
		if err := f.open(); err != nil {
			continue
		}
		for dir, at := range f.runs() {
			all[f.name(dir)] = at
		}
	}
	for name, r := range w.runs {
		if at, ok := all[name]; !ok || at.root != r.root || at.dir != r.dir {
			delete(w.runs, name)
			changed = true
		}
	}
	for name, at := range all {
		if w.runs[name] == nil {
			w.runs[name] = &watched{run: newRun(name, at)}
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

// release ends a call of watch.
func (w *Watcher) release(held map[string]*watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range held {
		r.streams--
	}
}

// summaries describes the runs of a list, the last written first: the first runs whose names contain the search, and
// the runs that are shown.
func (w *Watcher) summaries(v view) []Summary {
	now := time.Now()
	list := []Summary{}
	for _, name := range w.newest(0) {
		matches := strings.Contains(strings.ToLower(name), strings.ToLower(v.search))
		if slices.Contains(v.runs, name) || matches && len(list) < listedRuns {
			list = append(list, w.runs[name].summary(now))
		}
	}
	return list
}
