// Package abi has the names and numbers that hooks share with their hosts: package wasm and package page, in a browser.
// docs/HOOKS.md describes the ABI.
package abi

// Exports of a module.
const (
	Memory  = "memory"
	Version = "gpupipe_abi_v1"
	Alloc   = "gpupipe_alloc"
	Init    = "_initialize"
	Open    = "gpupipe_open"
	Save    = "gpupipe_save"
	Load    = "gpupipe_load"
)

// MinorVersion is the minor version of the ABI that the hosts implement.
const MinorVersion = 0

const (
	// MaxMessage is how many bytes of fail's text are kept.
	MaxMessage = 4096
	// HostCall is the work of a call of the host, in units.
	HostCall = 256
	// Quantum is the work, in units, after which a module calls the host's tick: about a quarter of a millisecond.
	Quantum = 500_000
)
