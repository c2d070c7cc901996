package study

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/optim"
)

// Mode is a column of the grid: a delay of all or some microbatches, and its correction.
type Mode struct {
	Name       string
	Delay      int
	Stale, Of  int    // the share of the microbatches that is stale, Stale/Of, if some are not; else 0 and 0
	Correction string // a name of optim.Corrections
}

// SyncMode is the mode that the others are compared to.
const SyncMode = "sync"

const delayMode = "delay" // and "delay-1of4", "delay+CORRECTION", "delay-1of4+CORRECTION"

var partlyStale = regexp.MustCompile(`^` + delayMode + `-([1-9][0-9]{0,5})of([1-9][0-9]{0,5})$`)

func parseMode(name string) (Mode, error) {
	m := Mode{Name: name, Delay: 1, Correction: optim.CorrectionNone}
	delay, correction, corrected := strings.Cut(name, "+")
	if corrected {
		m.Correction = correction
	}
	part := partlyStale.FindStringSubmatch(delay)
	if part != nil {
		m.Stale, _ = strconv.Atoi(part[1]) // digits
		m.Of, _ = strconv.Atoi(part[2])
	}
	switch {
	case name == SyncMode:
		return Mode{Name: name, Correction: optim.CorrectionNone}, nil
	case corrected && !slices.Contains(corrections(), correction), delay != delayMode && part == nil, m.Stale > m.Of:
		return Mode{}, fmt.Errorf("found %q, expected sync, delay, delay-1of4 (a quarter of the microbatches), or one of the latter two with +%s",
			name, strings.Join(corrections(), ", +"))
	}
	return m, nil
}

// corrections are the corrections that a mode may have.
func corrections() []string {
	return slices.DeleteFunc(optim.CorrectionNames(), func(name string) bool { return name == optim.CorrectionNone })
}

// partly reports whether only some microbatches are stale.
func (m Mode) partly() bool { return m.Of > 0 }

// stale is how many microbatches of a batch are stale in a mode that is partly stale.
func (m Mode) stale(microbatches int) (int, error) {
	if microbatches%m.Of != 0 {
		return 0, fmt.Errorf("%s: found %d microbatches, expected a multiple of %d (train.microbatches)", m.Name, microbatches, m.Of)
	}
	return m.Stale * microbatches / m.Of, nil
}

var ofAll = regexp.MustCompile(`-(\d+)of(\d+)`)

// Title is a mode's name as text, as in "delay 1/4 + error feedback".
func (m Mode) Title() string {
	return strings.NewReplacer("+", " + ", "_", " ", "dc_asgd", "DC-ASGD").Replace(ofAll.ReplaceAllString(m.Name, " $1/$2"))
}
