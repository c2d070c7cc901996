package sweep

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Trial is a configuration that the sweep tries: a value of each key.
type Trial struct {
	values []value // by key
	name   string  // "lr 0.001, name muon"
	folder string  // "lr=0.001,name=muon"
}

// Run is one training run of a sweep: a trial with a seed, up to a rung. It continues the run up to the rung before.
type Run struct {
	Trial int    // from 1
	Seed  uint64 // of the initial weights and the order of the data
	Rung  int    // from 0
	sweep *Sweep
}

// String describes the run, as in "lr 0.001, name muon, seed 1, to step 50".
func (r Run) String() string {
	text := r.sweep.Trials[r.Trial-1].name
	if len(r.sweep.Seeds) > 1 {
		text += fmt.Sprintf(", seed %d", r.Seed)
	}
	if len(r.sweep.Rungs) > 1 {
		text += fmt.Sprintf(", to step %d", r.sweep.Rungs[r.Rung])
	}
	return text
}

// MarshalText is String.
func (r Run) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// run is a run of a trial by its index.
func (s *Sweep) run(trial int, seed uint64, rung int) Run { return Run{trial + 1, seed, rung, s} }

// Folder is the folder of a run. The runs of a trial and seed on all rungs share it.
func (s *Sweep) Folder(r Run) string {
	return filepath.Join(s.Dir, "runs", fmt.Sprintf("%s,seed=%d", s.Trials[r.Trial-1].folder, r.Seed))
}

var unsafe = regexp.MustCompile(`[^A-Za-z0-9._+-]+`)

// maxName is the length from which names of folders are cut.
const maxName = 120

// newTrial names a trial after its values. The folder of values that cannot be part of a name, or that are too long,
// has a hash of them.
func (s *Sweep) newTrial(values []value) Trial {
	var names, exact, safe []string
	for i, short := range shortNames(s.Keys) {
		names = append(names, short+" "+values[i].text)
		exact = append(exact, s.Keys[i].Name+"="+values[i].text)
		safe = append(safe, short+"="+unsafe.ReplaceAllString(values[i].text, "_"))
	}
	folder, lost := strings.Join(safe, ","), false
	for _, v := range values {
		lost = lost || unsafe.MatchString(v.text)
	}
	if lost || len(folder) > maxName {
		hash := sha256.Sum256([]byte(strings.Join(exact, "\n")))
		folder = folder[:min(len(folder), maxName)] + "," + hex.EncodeToString(hash[:4])
	}
	return Trial{values, strings.Join(names, ", "), folder}
}

// choose lists the trials of the search. n is the number of runs that the file gives; 0: none.
func (s *Sweep) choose(n int) ([]Trial, error) {
	all, given := combinations(s.Keys), n
	switch {
	case n < 0 || n > maxRuns:
		return nil, s.Errorf("runs", "found %d, expected an integer from 1 to %d", n, maxRuns)
	case s.Search == Grid:
		return s.product(n, all)
	case n > all && all > 0:
		return nil, s.Errorf("runs", "found %d, expected at most %d, the number of combinations", n, all)
	case n == 0:
		n = defaultRuns
	}
	if all > 0 && n >= all {
		return s.product(0, all)
	}
	ts := s.drawn(n)
	if len(ts) < given {
		return nil, s.Errorf("runs", "found %d, expected at most %d: the ranges have no more values", given, len(ts))
	}
	return ts, nil
}

// product lists all combinations, the first key varying slowest.
func (s *Sweep) product(n, all int) ([]Trial, error) {
	if n > 0 {
		return nil, s.Errorf("runs", "found %d, expected none with search: grid, which tries all combinations", n)
	}
	for _, k := range s.Keys {
		if k.values == nil {
			return nil, fmt.Errorf("%s: keys.%s: found a range, expected a list of values with search: grid, or points that divide the range", k.where, k.Name)
		}
	}
	if all == 0 || all > maxRuns {
		return nil, s.Errorf("keys", "found more than %d combinations, expected fewer: search: random tries some", maxRuns)
	}
	rows := [][]value{nil}
	for _, k := range s.Keys {
		var longer [][]value
		for _, row := range rows {
			for _, v := range k.values {
				longer = append(longer, append(slices.Clip(row), v))
			}
		}
		rows = longer
	}
	var ts []Trial
	for _, row := range rows {
		ts = append(ts, s.newTrial(row))
	}
	return ts, nil
}

// drawn lists n different combinations at random. The draw of a number depends on the seed and the number alone, so
// that more runs add trials and keep the others. There are fewer if draws repeat each other.
func (s *Sweep) drawn(n int) (ts []Trial) {
	seen := map[string]bool{}
	for draw, repeated := uint64(0), 0; len(ts) < n && repeated < 1000+100*n; draw++ {
		source := rand.NewChaCha8(sha256.Sum256(fmt.Appendf(nil, "%d %d", s.seed, draw)))
		var row []value
		for _, k := range s.Keys {
			row = append(row, k.draw(float64(source.Uint64()>>11)/(1<<53)))
		}
		t := s.newTrial(row)
		if seen[t.name] {
			repeated++
			continue
		}
		seen[t.name] = true
		ts = append(ts, t)
	}
	return ts
}
