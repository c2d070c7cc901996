package main

import (
	"os"

	"golang.org/x/sys/windows"
)

// rewritable reports whether a console takes the sequences that rewrite a status line. Consoles do since Windows 10,
// once they are asked.
func rewritable(f *os.File) bool {
	console := windows.Handle(f.Fd())
	var mode uint32
	return windows.GetConsoleMode(console, &mode) == nil &&
		windows.SetConsoleMode(console, mode|windows.ENABLE_PROCESSED_OUTPUT|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
