package study

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupipe/gpupipe/optim"
	"github.com/gpupipe/gpupipe/pipeline/wire"
)

// Mode is a column of the grid: a delay of all or some microbatches, its correction, and wire formats, or replicas that
// seldom talk.
type Mode struct {
	Name           string
	Delay          int
	Stale, Of      int    // the share of the microbatches that is stale, Stale/Of, if some are not; else 0 and 0
	Correction     string // a name of optim.Corrections
	Wire, Exchange string // pipeline.wire and pipeline.wire_exchange; empty: as in the config
	Local          Local  // of replicas that train on their own; zero: they do not
}

// SyncMode is the mode that the others are compared to.
const SyncMode = "sync"

const delayMode = "delay" // and "delay-1of4", "delay+CORRECTION", "delay-1of4+CORRECTION"

// What may follow a mode without wire formats: @FORMAT, @exchange-bf16, or both in this order.
const (
	wireMark     = "@"
	exchangeMode = "exchange-"
)

var partlyStale = regexp.MustCompile(`^` + delayMode + `-([1-9][0-9]{0,5})of([1-9][0-9]{0,5})$`)

func parseMode(name string) (Mode, error) {
	exact, formats, rounded := strings.Cut(name, wireMark)
	parse := parseExact
	if strings.HasPrefix(exact, localPrefix) {
		parse = func(exact string) (Mode, error) { return parseLocal(exact, formats, rounded) }
	}
	m, err := parse(exact)
	if err != nil {
		return Mode{}, fmt.Errorf("found %q, %w", name, err)
	}
	m.Name = name
	if !rounded || m.local() {
		return m, nil
	}
	activations, exchange, both := strings.Cut(formats, wireMark)
	if strings.HasPrefix(activations, exchangeMode) && !both {
		activations, exchange, both = "", activations, true
	}
	m.Wire, m.Exchange = activations, strings.TrimPrefix(exchange, exchangeMode)
	bf16, int8 := wire.BF16.String(), wire.Int8.String()
	if !slices.Contains([]string{"", bf16, int8}, m.Wire) || both && exchange != exchangeMode+bf16 || !both && m.Wire == "" {
		return Mode{}, fmt.Errorf("found %q, expected %s followed by @%s or @%s, @%s%s, or both", name, exact, bf16, int8, exchangeMode,
			bf16)
	}
	return m, nil
}

// parseExact parses a mode without wire formats.
func parseExact(name string) (Mode, error) {
	m := Mode{Delay: 1, Correction: optim.CorrectionNone}
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
	case name == SyncMode, name == aloneMode:
		return Mode{Correction: optim.CorrectionNone}, nil
	case corrected && !slices.Contains(corrections(), correction), delay != delayMode && part == nil, m.Stale > m.Of:
		return Mode{}, fmt.Errorf("expected sync, delay, delay-1of4 (a quarter of the microbatches), or one of the latter two with +%s; "+
			"each may end in a wire format, as in sync@int8; or alone, %s or %s%s8, of replicas", strings.Join(corrections(), ", +"),
			localMode, localMode, lateMark)
	}
	return m, nil
}

// rounds reports whether the mode sets a wire format.
func (m Mode) rounds() bool { return m.Wire != "" || m.Exchange != "" }

// exact is the name of the mode without its wire formats.
func (m Mode) exact() string {
	name, _, _ := strings.Cut(m.Name, wireMark)
	return name
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

var titles = strings.NewReplacer("+", " + ", "_", " ", "dc_asgd", "DC-ASGD", wireMark+exchangeMode, ", exchange in ", wireMark, ", ",
	localPrefix, "local ", lateMark, ", late ")

// Title is a mode's name as text, as in "delay 1/4 + error feedback, int8" or "local 32, late 8 + error feedback".
func (m Mode) Title() string { return titles.Replace(ofAll.ReplaceAllString(m.Name, " $1/$2")) }
