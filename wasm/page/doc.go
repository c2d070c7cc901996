// Package page runs users' hooks in the WebAssembly engine of the browser, from Go that was built for GOOS=js:
// build_loss and learning_rate, with the interface that docs/HOOKS.md describes and under the limits of package wasm,
// but for the system interface, which there is none of. Modules are metered before the browser sees them, so that none
// of them can stop the page for longer than Limits.Deadline. Elsewhere the package is empty.
//
// Nothing here may be called in a callback from JavaScript, but in a goroutine that it starts.
package page
