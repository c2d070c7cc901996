// Package webgpujs runs programs through the WebGPU of a browser, from Go that is built for GOOS=js. It is a thin layer
// over syscall/js, without a library. On other systems the package is empty.
//
// A page has one thread, which the browser shares with Go. A method that waits blocks its goroutine until a promise is
// settled, while the browser continues. So no method may be called in a callback from JavaScript (js.FuncOf); the
// callback must start a goroutine instead.
package webgpujs
