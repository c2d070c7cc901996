package httpserver

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"
)

// minToken is the fewest characters of a token. maxToken is the most bytes of its file.
const (
	minToken = 16
	maxToken = 1 << 10
)

// NewToken returns a token that cannot be guessed.
func NewToken() string { return rand.Text() }

// ReadToken reads a token from a file, without the space around it. Command lines are no place for a token: other users
// of a machine see them.
func ReadToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text := make([]byte, maxToken+1)
	n := 0
	for n < len(text) {
		m, err := f.Read(text[n:])
		if n += m; err != nil {
			break
		}
	}
	token := strings.TrimSpace(string(text[:n]))
	if n > maxToken || len(token) < minToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s: expected a token of %d to %d printable ASCII characters", path, minToken, maxToken)
	}
	return token, nil
}
