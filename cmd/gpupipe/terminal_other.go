//go:build !windows

package main

import "os"

// rewritable reports that a terminal takes the sequences that rewrite a status line.
func rewritable(*os.File) bool { return true }
