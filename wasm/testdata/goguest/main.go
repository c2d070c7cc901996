//go:build wasip1

// A hook in Go with a bit of everything that its runtime asks the system for.
package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"time"
	"unsafe"
)

var (
	kept   = map[uint32][]byte{} // what the host was given must stay where it is
	config struct{ Greeting string }
)

//go:wasmimport gpupipe fail
func fail(p unsafe.Pointer, n uint32)

//go:wasmexport gpupipe_abi_v1
func version() uint32 { return 0 }

//go:wasmexport gpupipe_alloc
func alloc(n uint32) uint32 {
	b := make([]byte, n+16)
	p := (uint32(uintptr(unsafe.Pointer(&b[0]))) + 15) &^ 15
	kept[p] = b
	return p
}

//go:wasmexport gpupipe_open
func open(p unsafe.Pointer, n uint32, seed uint64) int32 {
	if err := json.Unmarshal(unsafe.Slice((*byte)(p), n), &config); err != nil {
		s := err.Error()
		fail(unsafe.Pointer(unsafe.StringData(s)), uint32(len(s)))
		return -1
	}
	fmt.Printf("%s, seed %d, %d arguments, %d variables\n", config.Greeting, seed, len(os.Args), len(os.Environ()))
	return 0
}

//go:wasmexport run
func run(p unsafe.Pointer, n uint32) int32 {
	out := unsafe.Slice((*byte)(unsafe.Pointer(uintptr(*(*uint32)(unsafe.Add(p, 28))))), 64)
	rand.Read(out[:32])
	start := time.Now()
	done := make(chan string)
	go func() {
		time.Sleep(3 * time.Hour)
		done <- "slept"
	}()
	copy(out[32:], fmt.Sprint(<-done, " ", time.Since(start).Truncate(time.Minute)))
	_, err := os.Open("/etc/passwd")
	fmt.Fprintln(os.Stderr, err)
	return int32(start.Year())
}

//go:wasmexport crash
func crash(p unsafe.Pointer, n uint32) int32 { panic("no more ideas") }

//go:wasmexport spin
func spin(p unsafe.Pointer, n uint32) int32 {
	for {
	}
}

//go:wasmexport hoard
func hoard(p unsafe.Pointer, n uint32) int32 {
	for {
		alloc(1 << 20)
	}
}

func main() {}
