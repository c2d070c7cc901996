// Package othersystems checks the project for systems that its tests do not run on.
package othersystems
