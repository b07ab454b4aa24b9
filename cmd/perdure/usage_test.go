package main

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// noServer sets the environment of the commands to a port where nothing listens.
func noServer(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = "http://" + l.Addr().String()
	l.Close()
	t.Setenv("PERDURE_URL", address)
	t.Setenv("PERDURE_DATA", t.TempDir())
	return address
}

// Without a server a command says how to start one. There is no key either.
func TestCommandsSayHowToStartAServer(t *testing.T) {
	address := noServer(t)
	defer func(d time.Duration) { serverPatience = d }(serverPatience)
	for _, key := range []string{"", "prd_none"} {
		t.Setenv("PERDURE_KEY", key)
		if key != "" {
			serverPatience = 0
		}
		for _, args := range [][]string{{"jobs"}, {"run", "x"}, {"fg", "x"}, {"kill", "x"}, {"dlq"}, {"keys", "list"}} {
			_, stderr := mustRun(t, exitFail, args...)
			has(t, stderr, "no server at "+address, "perdure dev", "PERDURE_URL")
		}
	}
}

// With several addresses a command uses one that works, and says if there is none.
func TestCommandsTakeSeveralAddresses(t *testing.T) {
	first := noServer(t)
	second := noServer(t)
	t.Setenv("PERDURE_KEY", "prd_none")
	defer func(d time.Duration) { serverPatience = d }(serverPatience)
	serverPatience = 0
	_, stderr := mustRun(t, exitFail, "jobs", "--url", first+","+second)
	has(t, stderr, "no server at "+first+","+second)
	live(t)
	works := os.Getenv("PERDURE_URL")
	for _, addresses := range []string{first + "," + works, first + ", " + second + "/ ," + works + "/",
		works + "," + first} {
		t.Setenv("PERDURE_URL", addresses)
		id, stderr := mustRun(t, 0, "run", "-d", "slow")
		if stderr != "" {
			t.Errorf("with %s run prints %q, want nothing about servers that are away", addresses, stderr)
		}
		out, _ := mustRun(t, 0, "logs", strings.TrimSpace(id))
		has(t, out, "run:created")
	}
	out, _ := mustRun(t, exitFail, "doctor") // a run is claimable, and there is no worker
	has(t, out, "ok   server", "ok   TLS              off: "+works, "ok   TLS              off: "+first)
	_, stderr = mustRun(t, exitFail, "jobs", "--url", works+",nonsense")
	has(t, stderr, `the server's address is "nonsense"`)
}

// onWrite is a writer that calls a function.
type onWrite func(text string)

func (f onWrite) Write(b []byte) (int, error) {
	f(string(b))
	return len(b), nil
}

// A command that is called while its server restarts prints that at once, and continues when the
// server is back.
func TestCommandsWaitForRestartingServer(t *testing.T) {
	address := noServer(t)
	t.Setenv("PERDURE_KEY", "prd_none")
	var stderr strings.Builder
	var hs *httptest.Server
	code := run([]string{"jobs"}, io.Discard, onWrite(func(text string) {
		stderr.WriteString(text)
		if hs != nil {
			return
		}
		l, err := net.Listen("tcp", strings.TrimPrefix(address, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		hs = &httptest.Server{Listener: l,
			Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, `{"runs":[]}`)
			})}}
		hs.Start()
		t.Cleanup(hs.Close)
	}))
	if code != exitOK || !strings.HasPrefix(stderr.String(), "there is no server at "+address) {
		t.Errorf("exit code %d, want 0; stderr: %s", code, &stderr)
	}
}

func TestUsageNamesArguments(t *testing.T) {
	for command, want := range map[string]string{
		"run": "run KIND", "logs": "logs RUN", "peek": "peek RUN", "fg": "fg [RUN]", "bg": "bg RUN…",
		"wait": "wait RUN", "kill": "kill RUN…", "rm": "rm ID…",
		"artifacts": "artifacts RUN [NAME]", "view": "view RUN [NAME]", "late": "late RUN [adopt|discard N]",
		"signal":  "signal RUN NAME [JSON]",
		"approve": "approve [ID]",
		"backup":  "backup FILE", "restore": "restore FILE", "clock": "clock [reset]", "dlq show": "dlq show RUN_ID",
		"dlq redrive":  "dlq redrive [RUN_ID…]",
		"webhooks add": "webhooks add URL", "webhooks redeliver": "webhooks redeliver DELIVERY_ID",
		"keys create": "keys create NAME", "keys revoke": "keys revoke ID",
		"keys signing public":  "keys signing public FILE…",
		"keys signing require": "keys signing require TENANT on|off", "tenants set": "tenants set TENANT",
	} {
		_, stderr := mustRun(t, exitOK, append(strings.Fields(command), "-h")...)
		has(t, stderr, "Usage: perdure "+want+" [flags]\n")
	}
}

func TestMissingArgumentIsNamed(t *testing.T) {
	noServer(t)
	for _, c := range []struct{ args, want string }{
		{"run", "perdure run: KIND is missing\n"},
		{"run --input 1", "perdure run: KIND is missing\n"},
		{"kill", "perdure kill: RUN is missing\n"},
		{"signal r", "perdure signal: NAME is missing\n"},
		{"late r adopt", "perdure late: N is missing\n"},
		{"dlq show", "perdure dlq show: RUN_ID is missing\n"},
		{"keys signing require acme", "perdure keys signing require: on|off is missing\n"},
		{"run a b", "perdure run: b is one argument too many\n"},
		{"webhooks list b", "perdure webhooks list: b is one argument too many\n"},
	} {
		_, stderr := mustRun(t, exitUsage, strings.Fields(c.args)...)
		has(t, stderr, c.want, "Usage")
	}
}

// The documentation and the help describe the exit codes with the same sentence.
func TestExitCodesAreTheSameEverywhere(t *testing.T) {
	manual, err := os.ReadFile("../../docs/server.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"docs/server.md": string(manual)}
	texts["help"], _ = mustRun(t, exitOK, "help")
	for _, command := range []string{"run", "fg", "wait", "exec"} {
		_, texts[command] = mustRun(t, exitOK, command, "-h")
	}
	const want = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the run goes on without us, 4 the run timed out, " +
		"5 it was cancelled, 69 the database is away, 74 the disk failed, 79 the process goes on without us"
	for name, text := range texts {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
			t.Errorf("%s lacks the sentence %q", name, want)
		}
	}
}

func TestDoctorReportsMissingServer(t *testing.T) {
	address := noServer(t)
	stdout, _ := mustRun(t, exitFail, "doctor")
	has(t, stdout, "BAD  server", "no server at "+address)
}
