package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// tokenFile is the environment variable with the number of a file that holds the token of gpupipe join.
const tokenFile = "GPUPIPE_TOKEN_FILE"

// hideToken replaces the program by itself if a token stands among its arguments or in its environment, where other
// processes of this computer may read it as long as this one runs. The token is then in a file in memory that only this
// process has. If that is not possible, the program goes on as it is.
func hideToken() {
	args, token := withoutToken(os.Args)
	if token == "" {
		return
	}
	if err := restartWith(args, token); err != nil {
		fmt.Fprintf(os.Stderr, "gpupipe: other users of this computer can see the token while this process runs: %v\n", err)
	}
}

// withoutToken returns the command line without the token of gpupipe join, and the token from there or from the
// environment; "": there is none.
func withoutToken(args []string) (rest []string, token string) {
	if !slices.Contains(args, "join") {
		return args, ""
	}
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(strings.TrimSpace(a), "gp1.") })
	if i < 0 {
		return args, os.Getenv(tokenVariable)
	}
	return slices.Concat(args[:i], args[i+1:]), args[i]
}

// restartWith replaces this process by one with other arguments that reads the token from a file. It returns if that
// fails.
func restartWith(args []string, token string) error {
	program, err := thisProgram()
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("token", 0) // 0: it stays open in the new program
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "token")
	defer f.Close()
	if _, err := f.WriteString(token); err != nil {
		return err
	}
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, tokenVariable+"=") || strings.HasPrefix(v, tokenFile+"=")
	})
	return syscall.Exec(program, args, append(environment, fmt.Sprintf("%s=%d", tokenFile, fd)))
}

// handedOver returns the token that restartWith has handed over, and closes its file; "": none.
func handedOver() string {
	var fd int
	if n, err := fmt.Sscan(os.Getenv(tokenFile), &fd); n != 1 || err != nil || fd <= 2 {
		return ""
	}
	_ = os.Unsetenv(tokenFile)
	f := os.NewFile(uintptr(fd), "token")
	defer f.Close()
	text := make([]byte, maxTokenText)
	n, err := f.ReadAt(text, 0)
	if err != nil && n == 0 {
		return ""
	}
	return string(text[:n])
}
