package wasm

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero/api"

	"github.com/gpupipe/gpupipe/wasm/internal/abi"
)

// Bounds on the keys that a module may declare.
const (
	maxKeys = 256
	maxKey  = 256 // bytes
)

// Keys are the keys of a configuration that a module declares.
type Keys map[string]bool

// Add adds a key of the given length in bytes, which read returns.
func (k Keys) Add(length uint32, read func() ([]byte, error)) error {
	if length > maxKey {
		return fmt.Errorf("found a key of %d bytes, expected at most %d", length, maxKey)
	}
	b, err := read()
	if err != nil || k[string(b)] {
		return err
	}
	if len(k) == maxKeys {
		return fmt.Errorf("found more than %d keys", maxKeys)
	}
	k[string(b)] = true
	return nil
}

// Check returns an error if a configuration has a key that the module does not declare. A module that declares no keys
// accepts all.
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
			return fmt.Errorf("config: unknown key %.64q, expected one of %s", key,
				printable([]byte(strings.Join(slices.Sorted(maps.Keys(k)), ", "))))
		}
	}
	return nil
}

// keyImport is config_key, with which a module declares a key of its configuration.
func keyImport() Import {
	return Import{Name: "config_key", Params: []api.ValueType{i32, i32}, Call: func(i *Instance, s []uint64) error {
		i.Charge(abi.HostCall)
		return i.keys.Add(uint32(s[1]), func() ([]byte, error) { return i.Read(uint32(s[0]), uint32(s[1])) })
	}}
}

// CheckKeys returns an error if the configuration has a key that the module has not declared, unless it declares none.
// Call it when the module has declared all its keys. [Module.Open] calls it after gpupipe_open.
func (i *Instance) CheckKeys() error {
	if err := i.keys.Check(i.options.Config); err != nil {
		return &abi.Failure{Text: err.Error()}
	}
	return nil
}
