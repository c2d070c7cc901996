package wasm

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero/api"
)

// Bounds on the keys that a module may name.
const (
	maxKeys = 256
	maxKey  = 256 // bytes
)

// Keys are those of a configuration that a module says it knows.
type Keys map[string]bool

// Add adds one of length bytes, which read gives.
func (k Keys) Add(length uint32, read func() ([]byte, error)) error {
	if length > maxKey {
		return fmt.Errorf("a key of %d bytes, at most %d allowed", length, maxKey)
	}
	b, err := read()
	if err != nil || k[string(b)] {
		return err
	}
	if len(k) == maxKeys {
		return fmt.Errorf("more than %d keys", maxKeys)
	}
	k[string(b)] = true
	return nil
}

// Check refuses a configuration with a key that is not among them, unless there are none.
func (k Keys) Check(config []byte) error {
	if len(k) == 0 || len(config) == 0 {
		return nil
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(config, &given); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if !k[key] {
			return fmt.Errorf("config: unknown key %.64q, expected one of %s", key, printable([]byte(strings.Join(slices.Sorted(maps.Keys(k)), ", "))))
		}
	}
	return nil
}

// keyImport is config_key, with which a module says that it knows a key of its configuration.
func keyImport() Import {
	return Import{Name: "config_key", Params: []api.ValueType{i32, i32}, Call: func(i *Instance, s []uint64) error {
		i.Charge(hostCall)
		return i.keys.Add(uint32(s[1]), func() ([]byte, error) { return i.Read(uint32(s[0]), uint32(s[1])) })
	}}
}

// CheckKeys refuses a configuration with a key that the module has not named so far, if it has named any. It is for use
// where a module has had its chance to name all that it knows; [Module.Open] does it after gpupipe_open.
func (i *Instance) CheckKeys() error {
	if err := i.keys.Check(i.options.Config); err != nil {
		return &failure{err.Error()}
	}
	return nil
}
