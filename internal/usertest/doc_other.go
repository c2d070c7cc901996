//go:build !linux

// Package usertest lets tests access files as another user, on Linux only.
package usertest
