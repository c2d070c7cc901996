// Package usertest lets tests access files as an unprivileged user, on Linux only: permissions do not bind root.
package usertest
