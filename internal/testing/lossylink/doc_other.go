//go:build !linux

// Package lossylink runs processes of tests in network namespaces, on Linux only.
package lossylink

// Enter does nothing here.
func Enter() {}
