//go:build linux

package vulkan

/*
#include "native.h"
*/
import "C"

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"github.com/gpupipe/gpupipe/internal/codecache"
	"github.com/gpupipe/gpupipe/shaders/spirv"
	vk "github.com/vulkan-go/vulkan"
)

// pipelineCache is the driver's cache of compiled pipelines, kept in a file. The driver checks that the file is its
// own; codecache checks that it is complete.
type pipelineCache struct {
	handle vk.PipelineCache
	path   string
	spent  time.Duration // compiling since the last save
}

// maxUnsaved is the compile time that may be lost when the process is killed.
const maxUnsaved = 2 * time.Second

func (c *pipelineCache) open(d *Device) error {
	var kept []byte
	if d.kernels.dir != "" {
		name := sha256.Sum256([]byte(d.Info().Adapter + "\x00" + d.Info().Driver))
		c.path = filepath.Join(d.kernels.dir, "pipelines-"+hex.EncodeToString(name[:8]))
		kept = codecache.Read(c.path)
	}
	info := vk.PipelineCacheCreateInfo{SType: vk.StructureTypePipelineCacheCreateInfo}
	if len(kept) > 0 {
		info.InitialDataSize, info.PInitialData = uint(len(kept)), unsafe.Pointer(&kept[0])
	}
	var pin runtime.Pinner
	if len(kept) > 0 {
		pin.Pin(&kept[0]) // C keeps the pointer within info
	}
	defer pin.Unpin()
	defer info.Free()
	var handle vk.PipelineCache
	err := failure(vk.CreatePipelineCache(d.gpu, &info, nil, &handle))
	c.handle = handle
	return err
}

func (c *pipelineCache) pipeline(k *kernels, m *spirv.Module, of layout, trusted bool) (C.uint64_t, error) {
	start := time.Now()
	p, err := k.newPipeline(m, of, trusted, c.handle)
	c.spent += time.Since(start)
	return p, err
}

// saveNow saves if much compile time would be lost otherwise.
func (c *pipelineCache) saveNow(d *Device) {
	if c.spent >= maxUnsaved {
		c.save(d)
	}
}

// save writes the file if there is anything new. If that fails, the next process compiles again.
func (c *pipelineCache) save(d *Device) {
	if c.path == "" || c.spent == 0 {
		return
	}
	c.spent = 0
	var n uint
	if vk.GetPipelineCacheData(d.gpu, c.handle, &n, nil) != vk.Success || n == 0 {
		return
	}
	data := make([]byte, n)
	if vk.GetPipelineCacheData(d.gpu, c.handle, &n, unsafe.Pointer(&data[0])) == vk.Success {
		_ = codecache.Write(c.path, data[:n])
	}
}

func (c *pipelineCache) free(d *Device) {
	if c.handle != nil {
		vk.DestroyPipelineCache(d.gpu, c.handle, nil)
	}
}
