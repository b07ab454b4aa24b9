package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// The tests run this program again: as with, which runs it once more as the command.
const role = "PERDURE_WITH_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "with":
		main()
	case "command":
		if err := command(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(7)
	}
	os.Exit(m.Run())
}

// command says where the data of its PostgreSQL is, and what its address.
func command() error {
	url := os.Getenv(pgtest.Env)
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var dir string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&dir); err != nil {
		return err
	}
	fmt.Println(dir, url)
	return nil
}

// with prepares this program as with, without a server of its own in the environment.
func with(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], append([]string{"--"}, args...)...)
	cmd.Env = append(os.Environ(), role+"=with", pgtest.Env+"=")
	cmd.Stderr = os.Stderr
	return cmd
}

// gone fails unless the server that a command has told of has ended and taken its data along.
func gone(t *testing.T, line string) {
	t.Helper()
	var dir, url string
	if _, err := fmt.Sscan(line, &dir, &url); err != nil {
		t.Fatalf("the command said %q: %v", line, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
	if _, err := pgx.Connect(t.Context(), url); err == nil {
		t.Error("the server still answers")
	}
}

func TestACommandHasAServerForAsLongAsItRuns(t *testing.T) {
	cmd := with("env", role+"=command", os.Args[0])
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("the command ended with 7, with with %v", err)
	}
	gone(t, string(out))
}

func TestDataInMemoryIsGoneWithTheCommand(t *testing.T) {
	cmd := with("env", role+"=command", os.Args[0])
	cmd.Args = slices.Insert(cmd.Args, 1, "-memory")
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("the command ended with 7, with -memory with %v", err)
	}
	gone(t, string(out))
}

func TestASignalReachesTheCommandAndTheServerIsStopped(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(s.String(), func(t *testing.T) {
			// The command takes the signal as a request, and needs its server once more before it goes.
			cmd := with("sh", "-c", `trap '`+role+
				`=command "$0"; exit 9' INT TERM; echo ready; while :; do read -r line; done`, os.Args[0])
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			if !lines.Scan() || lines.Text() != "ready" {
				t.Fatalf("the command said %q", lines.Text())
			}
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			// A shell that got the signal just before its read would wait for a line for ever.
			go func() {
				for err := error(nil); err == nil; {
					_, err = io.WriteString(in, "\n")
				}
			}()
			lines.Scan()
			line := lines.Text()
			err = cmd.Wait()
			if cmd.ProcessState.ExitCode() != 9 {
				t.Errorf("the command ended with 9, with with %v", err)
			}
			gone(t, line)
		})
	}
}

func TestAServerThatIsGivenIsUsed(t *testing.T) {
	c, err := pgtest.Start(pgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	cmd := with("env", role+"=command", os.Args[0])
	cmd.Env = append(cmd.Env, pgtest.Env+"="+c.URL("postgres"))
	out, _ := cmd.Output()
	if !strings.HasSuffix(strings.TrimSpace(string(out)), " "+c.URL("postgres")) {
		t.Errorf("the command got %q", out)
	}
}

func TestACommandThatIsNotThereIsAnError(t *testing.T) {
	cmd := with("/no/such/command")
	cmd.Stderr = nil
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 127 {
		t.Errorf("got %v", err)
	}
}
