package schedule

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// letters are the kinds as text, in the order of the constants.
var letters = [...]string{"F", "B", "I", "W", "E", "U", "RF", "SF", "RB", "SB", "SG", "RG", "N", "SW", "RW"}

func (k Kind) String() string {
	if int(k) < len(letters) {
		return letters[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// PerBatch reports whether the kind concerns a whole batch and not a microbatch.
func (k Kind) PerBatch() bool { return k == Update || k >= SendGrads }

// Computes reports whether the kind occupies a device; the others communicate.
func (k Kind) Computes() bool { return k <= Update }

// String is the action as text: U1 of batch 1; F0.1 of microbatch 0 of batch 1; F0.1:2 on chunk 2.
func (a Action) String() string {
	if a.Kind.PerBatch() {
		return fmt.Sprintf("%v%d", a.Kind, a.Batch)
	}
	s := fmt.Sprintf("%v%d.%d", a.Kind, a.Microbatch, a.Batch)
	if a.Chunk > 0 {
		s += fmt.Sprintf(":%d", a.Chunk)
	}
	return s
}

var actionText = regexp.MustCompile(`^([A-Z]{1,2})(\d{1,9})(?:\.(\d{1,9}))?(?::(\d{1,9}))?$`)

// ParseAction reads what Action.String writes. A microbatch without a batch, as in F0, is of batch 0.
func ParseAction(text string) (Action, error) {
	m := actionText.FindStringSubmatch(text)
	kind := -1
	if m != nil {
		for i, l := range letters {
			if l == m[1] {
				kind = i
			}
		}
	}
	if kind < 0 {
		return Action{}, fmt.Errorf("action %q: expected one of %s with numbers, as in F0.1 or U1", text, strings.Join(letters[:], ", "))
	}
	number := func(s string) int {
		n, _ := strconv.Atoi(s) // at most nine digits
		return n
	}
	a := Action{Kind: Kind(kind), Microbatch: number(m[2]), Batch: number(m[3]), Chunk: number(m[4])}
	if a.Kind.PerBatch() {
		if m[3] != "" || m[4] != "" {
			return Action{}, fmt.Errorf("action %q: %s concerns a whole batch, expected %s%s", text, m[1], m[1], m[2])
		}
		a.Microbatch, a.Batch = 0, a.Microbatch
	}
	return a, nil
}

// MarshalText is String.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText is ParseAction.
func (a *Action) UnmarshalText(text []byte) (err error) {
	*a, err = ParseAction(string(text))
	return err
}
