//go:build !unix

package host

import "errors"

// Map fails: no backend imports memory on this system.
func Map(int64, int64) (*Mapping, error) {
	return nil, errors.New("memory that devices can import cannot be mapped on this system")
}

// Unmap does nothing.
func (m *Mapping) Unmap() {}
