package httpd

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/tools/prose"
)

// errorsPage prints the registry of codes, a part of the page about the API.
func errorsPage() string {
	var b strings.Builder
	b.WriteString(`Every error is an ` + "`application/problem+json`" + ` (RFC 9457) with
` + "`type`, `title`, `status`, `detail`" + `, a stable ` + "`code`" + ` to act on and, where one part of the
request is to blame, its ` + "`field`" + `, such as ` + "`commits[0].journal[2].key`" + `. A refusal changes
nothing. The text of ` + "`title` and `detail`" + ` is for people and may change.

Inside of a batch (` + "`start`, `heartbeat`, `commit`, `release`, `runs/batch`" + `) an entry that is refused
has ` + "`error: {code, detail, field?}`" + ` with the same codes.
With 429, 503 and 507 comes ` + "`Retry-After`" + `; with 401, ` + "`WWW-Authenticate`" + `; with 405,
` + "`Allow`" + `.

| code | status | meaning |
| --- | --- | --- |
`)
	for _, c := range api.Codes {
		fmt.Fprintf(&b, "| `%s` | %d %s | %s. |\n", c.Code, c.Status, http.StatusText(c.Status), c.Title)
	}
	b.WriteString(`
### Failures of processes

A run of a command (` + "`perdure exec`, `perdure runner`" + `) that has failed has one of these codes in its
` + "`error`" + `, beside those of
every run.

| code | meaning |
| --- | --- |
| ` + "`exit_status`" + ` | The command has ended with an exit code other than 0. |
| ` + "`killed`" + ` | A signal has ended the command, or its runner was told to end. |
| ` + "`not_started`" + ` | There is no such program, or it can't be executed. |
| ` + "`spec_invalid`" + ` | The input of the run is no command. |
| ` + "`engine_unknown`" + ` | There is no such engine, or its file has a mistake. |
| ` + "`secret_unknown`" + ` | The runner has no secret of a name that the run gives. |
| ` + "`workspace_failed`" + ` | The job's folder can't be made or locked. It may be tried again. |
| ` + "`end_refused`" + ` | The server did not take the report of the command's end. |
`)
	return prose.Wrap(b.String())
}

func TestErrorDocsAreComplete(t *testing.T) {
	const path = "../../../docs/api.md"
	const begin = "<!-- begin of errors: printed from api.Codes by " +
		"go test ./internal/server/httpd -run Docs -update -->\n\n"
	const end = "\n<!-- end of errors -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(page), begin)
	got, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s has no part %q", path, begin)
	}
	want := errorsPage()
	if *update {
		got = want
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got != want {
		t.Errorf("%s is not what the code says: go test ./internal/server/httpd -run Docs -update", path)
	}
	seen := map[any]bool{}
	for _, c := range api.Codes {
		if seen[c.Code] || c.Status < 400 || c.Title == "" || api.StatusOf(c.Code) != c.Status {
			t.Errorf("code = %+v, want it unique, with a title and a status of 400 or more", c)
		}
		seen[c.Code] = true
	}
}

// The page of the API ends with the table of routes.
func TestAPIDocsAreComplete(t *testing.T) {
	const path = "../../../docs/api.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const marker = "## All routes\n\n| route | scope | |\n| --- | --- | --- |\n"
	written, table, ok := strings.Cut(string(page), marker)
	if !ok {
		t.Fatalf("%s lacks its table of routes", path)
	}
	var want strings.Builder
	for _, r := range (&Server{}).table() {
		needs := "`" + string(r.guard.scope) + "`"
		switch {
		case r.guard.open:
			needs = "open"
		case r.guard.platform && r.guard.scope != "":
			needs = "platform, " + needs
		case r.guard.platform:
			needs = "platform"
		}
		fmt.Fprintf(&want, "| `%s %s` | %s | %s |\n", r.method, r.pattern, needs, r.summary)
	}
	if *update {
		if err := os.WriteFile(path, []byte(written+marker+want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != want.String() {
		t.Errorf("the routes in %s are not those of the code: go test ./internal/server/httpd -run Docs -update", path)
	}
}
