package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/worker"
)

// writeDeadLetter creates a dead letter.
func writeDeadLetter(t *testing.T, c *client.Client, kind, code string) string {
	t.Helper()
	r, err := c.Start(context.Background(),
		perdure.Submission{Kind: kind, MaxAttempts: 1, Input: json.RawMessage(`{"n":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	answer(t, c, kind, perdure.Outcome{Type: perdure.OutcomeFail,
		Error: &perdure.Failure{Code: perdure.Code(code), Message: "it broke\x1b[2J\nat line 7"}})
	return string(r.RunID)
}

func TestDeadLettersOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	for _, args := range [][]string{{"dlq"}, {"dlq", "list"}, {"dlq", "redrive", "--cause", "x"},
		{"dlq", "discard", "--kind", "x"}} {
		if out := first(mustRun(t, 0, args...)); out != "No dead letters.\n" {
			t.Errorf("perdure %v printed %q, want that there is nothing", args, out)
		}
	}
	a, b, m := writeDeadLetter(t, c, "job", "broken"), writeDeadLetter(t, c, "job", "broken"), writeDeadLetter(t,
		c, "mail", "lost")
	out, _ := mustRun(t, 0, "dlq")
	has(t, out, "CAUSE", "broken", "job", "2 ", b, "lost", m)
	if strings.Contains(out, a) {
		t.Errorf("dlq printed %s, want one example of a cause", out)
	}
	has(t, first(mustRun(t, 0, "dlq", "--json")), `"count": 2`, `"example_run_id": "`+b)
	t.Setenv("FORCE_COLOR", "1")
	has(t, first(mustRun(t, 0, "dlq")), "\x1b[31mbroken\x1b[0m  job", "\x1b[31mlost\x1b[0m    mail")
	t.Setenv("FORCE_COLOR", "")
	out, _ = mustRun(t, 0, "dlq", "list", "--cause", "broken", "--limit", "1")
	has(t, out, b, "--cursor "+b)
	has(t, first(mustRun(t, 0, "dlq", "list", "--cursor", b)), a)
	out, _ = mustRun(t, 0, "dlq", "show", a)
	has(t, out, a, "job in default", "broken", `{"n":1}`, "TRY", "failed: broken: it broke", "run:dead_lettered",
		"run:failed", "perdure dlq redrive "+a)
	if strings.Contains(out, "\x1b") {
		t.Errorf("dlq show printed %q, want the worker's text escaped", out)
	}
	has(t, first(mustRun(t, 0, "dlq", "show", a, "--json")), `"attempts": [`, `"outcome": "failed"`)

	out, _ = mustRun(t, 0, "dlq", "redrive", a)
	made := regexp.MustCompile(a + ` is run ([0-9a-f-]+)`).FindStringSubmatch(out)
	if made == nil {
		t.Fatal(out)
	}
	if again := first(mustRun(t, 0, "dlq", "redrive", a)); again != out {
		t.Errorf("redrive printed %q, then %q, want the same run", out, again)
	}
	has(t, first(mustRun(t, 0, "dlq", "show", a)), "redriven   as "+made[1])
	out, _ = mustRun(t, 0, "dlq", "redrive", "--cause", "broken")
	if has(t, out, b+" is run "); strings.Contains(out, a) {
		t.Errorf("redrive by cause printed %s, want only those that are not redriven yet", out)
	}
	has(t, first(mustRun(t, 0, "dlq", "discard", a, b)), a+" is discarded", b+" is discarded")
	has(t, first(mustRun(t, 1, "dlq", "discard", a, m)), a+" not_found", m+" is discarded")
	has(t, first(mustRun(t, 0, "dlq")), "No dead letters.")
}

func TestBadCallsOfDlq(t *testing.T) {
	live(t)
	for _, args := range []string{"dlq what", "dlq show", "dlq show a b", "dlq redrive", "dlq discard",
		"dlq redrive a --cause b", "dlq list x", "dlq list --limit 0", "dlq list --limit -2", "dlq causes --limit 0",
		"dlq --limit -1", "keys signing", "keys signing what",
		"keys signing new", "keys signing public", "keys signing require acme", "keys signing require acme maybe"} {
		mustRun(t, 2, strings.Fields(args)...)
	}
	for args, want := range map[string]string{"dlq show " + "01999999-9999-7999-8999-999999999999": "not_found",
		"dlq redrive nonsense": "ids[0]", "dlq list --limit 5000": "limit",
		"keys signing public /nowhere": "no such file", "keys signing require default on": "no key to sign with"} {
		_, errs := mustRun(t, 1, strings.Fields(args)...)
		has(t, errs, want)
	}
}

func TestSigningKeysOnTheCommandLine(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "signing.key")
	_, errs := mustRun(t, 0, "keys", "signing", "new", file)
	id := regexp.MustCompile(`[0-9a-f]{16}`).FindString(errs)
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 || id == "" {
		t.Fatal(info, err, errs)
	}
	mustRun(t, 1, "keys", "signing", "new", file) // an existing file is not overwritten
	second := filepath.Join(dir, "second.key")
	mustRun(t, 0, "keys", "signing", "new", second)
	public, _ := mustRun(t, 0, "keys", "signing", "public", file, second)
	has(t, public, "# key "+id, "BEGIN PUBLIC KEY")
	if strings.Contains(public, "PRIVATE") {
		t.Errorf("keys signing public printed %s, want no private key", public)
	}
	trusted := filepath.Join(dir, "trust.pem")
	if err := os.WriteFile(trusted, []byte(public), 0o644); err != nil {
		t.Fatal(err)
	}
	if trust, err := worker.LoadTrust(trusted); err != nil || len(trust.Keys()) != 2 || trust.Keys()[0].ID != id {
		t.Errorf("trusted keys = %v (error %v), want 2, the first with id %s", trust, err, id)
	}

	c, _ := liveWith(t, embedded.Options{SigningKeys: []string{file, second}})
	has(t, first(mustRun(t, 0, "keys", "signing", "list")), id, "signs and verifies")
	has(t, first(mustRun(t, 0, "keys", "signing", "list", "--json")), `"key_id": "`+id, "BEGIN PUBLIC KEY")
	has(t, first(mustRun(t, 0, "keys", "signing", "require", "default", "on")), "only with a valid signature")
	if tenant, err := admin.New(c).Tenant(context.Background(), "default"); err != nil || !tenant.RequireSignatures {
		t.Errorf("tenant = %v (error %v), want required signatures", tenant, err)
	}
	mustRun(t, 0, "run", "-d", "job")
	answer(t, c, "job", perdure.Outcome{Type: perdure.OutcomeReject, Reason: "signature_invalid"})
	page, err := admin.New(c).DeadLetters(context.Background(), admin.DeadLetterFilter{Cause: "signature_invalid"})
	if err != nil || len(page.DeadLetters) != 1 {
		t.Fatal(page, err)
	}
	dead := string(page.DeadLetters[0].RunID)
	has(t, first(mustRun(t, 0, "dlq", "show", dead)), "perdure dlq redrive "+dead+" --resign")
	has(t, first(mustRun(t, 1, "dlq", "redrive", dead)), "signature_invalid", "resign")
	_, usage := mustRun(t, 0, "dlq", "-h")
	has(t, usage, "--resign")
	has(t, first(mustRun(t, 0, "dlq", "redrive", dead, "--resign")), dead+" is run ")
	has(t, first(mustRun(t, 0, "keys", "signing", "require", "default", "off")), "need no signature")
}

func TestSigningKeyReadableByOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "signing.key")
	mustRun(t, 0, "keys", "signing", "new", file)
	good, _ := mustRun(t, 0, "config", "check", "--signing-keys", file)
	has(t, good, "signing_keys", file)
	good, _ = mustRun(t, 0, "config", "check", "--signing-keys", file, "--signing-required", "acme,*")
	has(t, good, "signing_required  acme,*")
	for _, command := range [][]string{{"config", "check"}, {"serve", "--listen", "127.0.0.1:0", "--data",
		t.TempDir()}} {
		_, errs := mustRun(t, 1, append(command, "--signing-required", "acme")...)
		has(t, errs, "signing_required: there is no key to sign with")
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	_, errs := mustRun(t, 1, "config", "check", "--signing-keys", file)
	has(t, errs, "can be read by others", "chmod 600")
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{text, dir, filepath.Join(dir, "none")} {
		_, errs := mustRun(t, 1, "config", "check", "--signing-keys", bad)
		has(t, errs, "signing_keys: ")
	}
}
