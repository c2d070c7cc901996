package main

import (
	"io"
	"os"
)

// tokenVariable is the environment variable with the token of gpupipe join.
const tokenVariable = "GPUPIPE_TOKEN"

// maxTokenText is more than the longest token.
const maxTokenText = 8 << 10

// tokenFromElsewhere reads the token of gpupipe join where other users of this computer cannot see it: in the
// environment or on standard input. A token that cannot be read is an empty one.
func tokenFromElsewhere(a *app) string {
	if text := os.Getenv(tokenVariable); text != "" {
		_ = os.Unsetenv(tokenVariable) // processes that this one starts do not need it
		return text
	}
	text, err := io.ReadAll(io.LimitReader(a.stdin, maxTokenText))
	if err != nil {
		return ""
	}
	return string(text)
}

// hostName is the name of this computer.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "member"
	}
	return name
}
