//go:build !unix

package host

import "errors"

// Map makes none: no device here imports memory.
func Map(int64, int64) (*Mapping, error) {
	return nil, errors.New("memory that devices can import cannot be mapped on this system")
}

// Unmap has nothing to give back.
func (m *Mapping) Unmap() {}
