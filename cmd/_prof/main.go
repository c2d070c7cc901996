package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpupipe/gpupipe/graph"
	"github.com/gpupipe/gpupipe/graph/model"
	"github.com/gpupipe/gpupipe/runtime/cpu"
	"github.com/gpupipe/gpupipe/runtime/exec"
	"github.com/gpupipe/gpupipe/runtime/profile"
)

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

func main() {
	c := must(model.Preset("smollm2-135m"))
	c.SeqLen = 512
	n, _ := strconv.Atoi(os.Args[1])
	cache := filepath.Join(os.Getenv("HOME"), ".cache", "gpupipe-prof")
	os.MkdirAll(cache, 0o700)
	dev := must(cpu.Open(cpu.Options{CacheDir: cache}))
	g := must(c.Decode())
	p := must(exec.NewPlan(dev, map[string]*graph.Graph{"decode": g}, exec.Options{}))
	s := must(p.Load())
	for _, v := range s.Variables() {
		x := make([]float32, 1)
		_ = x
		b := make([]byte, v.Type.Bytes())
		for i := 0; i+4 <= len(b); i += 4 {
			b[i+3] = 0x3c
			b[i+1] = byte(i * 7)
		}
		if err := s.WriteVariable(v.ID, b); err != nil {
			panic(err)
		}
	}
	at := func(i int) {
		s.SetInput("decode", model.TokensInput, exec.IntBytes([]uint32{uint32(i % 1000)}))
		s.SetInput("decode", model.PositionInput, exec.IntBytes([]uint32{uint32(i)}))
	}
	for round := 0; round < 3; round++ {
		began := time.Now()
		for i := range n {
			at(i)
			s.Run("decode")
			must(must(s.Output("decode", model.LogitsOutput)).Wait())
		}
		fmt.Printf("%.2f ms a token\n", time.Since(began).Seconds()/float64(n)*1e3)
	}
	r := profile.NewRecorder("decode", dev.Info(), profile.Peak{GFLOPS: 200, GBps: 31})
	for i := range n {
		at(i)
		m := must(s.RunTimed("decode", nil))
		r.Add("decode", s.Kernels("decode"), must(m.Wait()))
	}
	pr := &profile.Profile{Steps: n, Ranks: []profile.Rank{r.Rank()}}
	pr.Print(os.Stdout, 150)
	fmt.Println(len(s.Kernels("decode")), "kernels")
}
