package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

func TestBatchOnTheCommandLine(t *testing.T) {
	live(t)
	file := writeFile(t, `{"kind":"a","input":{"n":1}}

{"kind":"b","colour":"red"}
{"kind":""}
{"kind":"c"} {"kind":"d"}
not JSON
{"kind":"a","idempotency_key":"own"}
`)
	out, errs := mustRun(t, 1, "run", "--batch", file, "--idempotency-key", "k")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 6 {
		t.Fatalf("output = %q, want a line for each of 6 lines", out)
	}
	for i, want := range []string{"1 ", `3 invalid: json: unknown field "colour"`, "4 invalid: kind: ",
		"5 invalid: the line has more than one JSON value", "6 invalid: ", "7 "} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d of the output = %q, want it to begin with %q", i, lines[i], want)
		}
	}
	if !strings.HasSuffix(lines[0], " queued") || !strings.HasSuffix(lines[5], " queued") {
		t.Errorf("output = %q, want the first and the last run queued", out)
	}
	has(t, errs, "2 accepted, 4 refused")
	again, _ := mustRun(t, 1, "run", "--batch", file, "--idempotency-key", "k")
	if want := strings.ReplaceAll(out, " queued", " queued duplicate"); again != want {
		t.Errorf("the second time: %q, want %q", again, want)
	}

	text, _ := mustRun(t, 1, "run", "--json", "--batch", file, "--idempotency-key", "k")
	var last batchResult
	all := strings.Split(strings.TrimSpace(text), "\n")
	err := json.Unmarshal([]byte(all[len(all)-1]), &last)
	if err != nil || last.Line != 7 || last.Index != 5 || !last.Duplicate ||
		!strings.Contains(lines[5], string(last.Run.RunID)) {
		t.Errorf("--json: %v, want line 7 with the same run\n%s", err, text)
	}
}

func TestBatchFromStandardInput(t *testing.T) {
	live(t)
	var b strings.Builder
	for i := range perdure.MaxList + 1 {
		fmt.Fprintf(&b, `{"kind":"a","input":%d}`+"\n", i)
	}
	file, err := os.Open(writeFile(t, b.String()))
	if err != nil {
		t.Fatal(err)
	}
	defer func(f *os.File) { os.Stdin = f }(os.Stdin)
	os.Stdin = file
	out, errs := mustRun(t, 0, "run", "--batch", "-")
	if n := strings.Count(out, " queued\n"); n != perdure.MaxList+1 {
		t.Errorf("%d runs are queued, want %d", n, perdure.MaxList+1)
	}
	has(t, errs, "1000 accepted, 0 refused\n1001 accepted, 0 refused\n")
}

func TestBatchRefusesWhatIsForOneRun(t *testing.T) {
	noServer(t)
	file := writeFile(t, `{"kind":"a"}`)
	for _, args := range [][]string{{"--queue", "q"}, {"--input", "1"}, {"--timeout", "1s"}, {"--wait", "1s"}} {
		_, errs := mustRun(t, exitUsage, append([]string{"run", "--batch", file}, args...)...)
		has(t, errs, args[0]+" is for a single run")
	}
	_, errs := mustRun(t, exitUsage, "run", "--batch", file, "kind")
	has(t, errs, "kind is one argument too many")
	mustRun(t, exitUsage, "run", "--batch", "")
	mustRun(t, exitFail, "run", "--batch", filepath.Join(t.TempDir(), "none"))
}
