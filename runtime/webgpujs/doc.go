// Package webgpujs runs programs through the WebGPU of a browser, from Go that was built for GOOS=js: a thin layer over
// syscall/js, without a library. Elsewhere the package is empty.
//
// A page has one thread, which belongs to the browser as much as to Go. Whatever waits here waits for a promise in a goroutine of
// its own, and the browser goes on. So no method may be called in a callback from JavaScript (js.FuncOf), but in a
// goroutine that it starts.
package webgpujs
