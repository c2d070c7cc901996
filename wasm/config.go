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

// keyImport is config_key, with which a module says that it knows a key of its configuration.
func keyImport() Import {
	return Import{Name: "config_key", Params: []api.ValueType{i32, i32}, Call: func(i *Instance, s []uint64) error {
		i.Charge(hostCall)
		if uint32(s[1]) > maxKey {
			return fmt.Errorf("a key of %d bytes, at most %d allowed", uint32(s[1]), maxKey)
		}
		b, err := i.Read(uint32(s[0]), uint32(s[1]))
		if err != nil || i.keys[string(b)] {
			return err
		}
		if len(i.keys) == maxKeys {
			return fmt.Errorf("more than %d keys", maxKeys)
		}
		if i.keys == nil {
			i.keys = map[string]bool{}
		}
		i.keys[string(b)] = true
		return nil
	}}
}

// CheckKeys refuses a configuration with a key that the module has not named so far, if it has named any. It is for use where a
// module has had its chance to name all that it knows; [Module.Open] does it after gpupipe_open.
func (i *Instance) CheckKeys() error {
	if len(i.keys) == 0 || len(i.options.Config) == 0 {
		return nil
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(i.options.Config, &given); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if !i.keys[key] {
			return &failure{fmt.Sprintf("config: unknown key %.64q, expected one of %s", key, printable([]byte(strings.Join(slices.Sorted(maps.Keys(i.keys)), ", "))))}
		}
	}
	return nil
}
