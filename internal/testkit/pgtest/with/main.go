// Command with runs another command beside a private PostgreSQL, whose address is in the environment
// variable PERDURE_TEST_POSTGRES:
//
//	go run ./internal/testkit/pgtest/with -- go test ./internal/server/store
//
// With -memory before the dashes its data, and the temporary files of the command, are in memory, if the machine has
// enough: for tests, not for measurements.
// Where PostgreSQL is missing it is installed, if we are root on Debian. Where the variable is set already,
// that server is used. It is for make, and for whoever tries something by hand.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

func main() {
	args := os.Args[1:]
	var o pgtest.Options
	if len(args) > 0 && args[0] == "-memory" {
		o.InMemory, args = true, args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: with [-memory] -- command [argument…]")
		os.Exit(2)
	}
	code, err := run(o, args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "with:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run gives the exit code of the command. The cluster is gone when it returns.
func run(o pgtest.Options, args []string) (code int, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	if os.Getenv(pgtest.Env) == "" {
		if err := install(); err != nil {
			return 1, err
		}
		c, startErr := pgtest.Start(o)
		if startErr != nil {
			return 1, startErr
		}
		defer func() { err = errors.Join(err, c.Stop()) }()
		if err := os.Setenv(pgtest.Env, c.URL("postgres")); err != nil {
			return 1, err
		}
	}
	if o.InMemory {
		path, remove, err := pgtest.TempFolder()
		if err != nil {
			return 1, err
		}
		defer remove()
		if path != "" {
			if err := os.Setenv("TMPDIR", path); err != nil {
				return 1, err
			}
		}
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			// The command decides when it is over; its database stays until then.
			cmd.Process.Signal(s)
		case err := <-done:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				if s := exit.Sys().(syscall.WaitStatus); s.Signaled() {
					return 128 + int(s.Signal()), nil
				}
				return exit.ExitCode(), nil
			}
			return 0, err
		}
	}
}
