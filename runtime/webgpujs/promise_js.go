package webgpujs

import (
	"errors"
	"syscall/js"
)

type object = map[string]any

// then calls one of two functions when a promise is settled. The functions must not wait.
func then(promise js.Value, done func(js.Value), failed func(error)) {
	var ok, no js.Func
	release := func() { ok.Release(); no.Release() }
	ok = js.FuncOf(func(_ js.Value, args []js.Value) any {
		release()
		done(args[0])
		return nil
	})
	no = js.FuncOf(func(_ js.Value, args []js.Value) any {
		release()
		failed(errorOf(args[0]))
		return nil
	})
	promise.Call("then", ok, no)
}

// await waits for a promise.
func await(promise js.Value) (v js.Value, err error) {
	settled := make(chan struct{})
	then(promise, func(got js.Value) { v = got; close(settled) }, func(e error) { err = e; close(settled) })
	<-settled
	return v, err
}

// errorOf returns what JavaScript threw as an error.
func errorOf(v js.Value) error {
	if m := v.Get("message"); m.Type() == js.TypeString {
		return errors.New(m.String())
	}
	return errors.New(v.String())
}

// attempt returns an exception of f as an error. Browsers throw exceptions for invalid arguments.
func attempt(f func()) (err error) {
	defer func() {
		if e := recover(); e != nil {
			thrown, ok := e.(js.Error)
			if !ok {
				panic(e)
			}
			err = thrown
		}
	}()
	f()
	return nil
}
