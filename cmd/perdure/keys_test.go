package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

// works tells whether a key is valid on the server of a folder, which it starts.
func works(t *testing.T, opt embedded.Options, key string) bool {
	t.Helper()
	srv, err := embedded.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	_, err = admin.New(client.New("http://perdure", key,
		client.Options{Transport: srv.Transport()})).Keys(context.Background())
	return err == nil
}

func TestPlatformKeysOnTheCommandLine(t *testing.T) {
	live(t)
	secret, explanation := mustRun(t, 0, "keys", "create", "prometheus", "--platform", "--scopes", "platform:read")
	has(t, explanation, "of the platform")
	key := strings.TrimSpace(secret)
	mustRun(t, 0, "watchdog", "--key", key)
	_, errs := mustRun(t, 1, "keys", "list", "--key", key)
	has(t, errs, "keys:admin")
	mustRun(t, 2, "keys", "create", "x", "--platform", "--tenant", "t")
	_, errs = mustRun(t, 1, "keys", "bootstrap") // the server has the data locked
	has(t, errs, "another server")

	text, _ := mustRun(t, 0, "audit", "--all-tenants")
	has(t, text, "key.create", "key.bootstrap", "first start", `"name":"prometheus"`, "(platform)")
	text, _ = mustRun(t, 0, "audit", "--all-tenants", "--action", "key.bootstrap", "--json")
	var page api.AuditLog
	if err := json.Unmarshal([]byte(text), &page); err != nil || len(page.Entries) != 1 ||
		page.Entries[0].Action != perdure.AuditKeyBootstrap {
		t.Errorf("audit entries = %v (error %v), want one key.bootstrap", page, err)
	}
	text, _ = mustRun(t, 0, "audit") // for the default tenant
	has(t, text, "nothing of the kind")
	_, errs = mustRun(t, 2, "audit", "--action", "key.creat")
	has(t, errs, "key.create?")
	mustRun(t, 2, "audit", "-n", "0")
	_, errs = mustRun(t, 1, "audit", "--key", key)
	has(t, errs, "audit:read")
}

func TestKeysBootstrapCreatesKeyWithoutServer(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PERDURE_DATA", dir)
	_, errs := mustRun(t, 1, "keys", "bootstrap")
	has(t, errs, "no data")
	srv, err := embedded.Open(embedded.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	srv.Close()
	text, _ := mustRun(t, 0, "keys", "bootstrap") // admin.key exists, so the key is printed
	if !works(t, embedded.Options{Dir: dir}, strings.TrimSpace(text)) {
		t.Errorf("printed key %q is not valid, want a valid one", text)
	}
	file := filepath.Join(dir, embedded.KeyFile)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	text, _ = mustRun(t, 0, "keys", "bootstrap", "--name", "found")
	has(t, text, file)
	b, err := os.ReadFile(file)
	info, serr := os.Stat(file)
	if err != nil || serr != nil || info.Mode().Perm() != 0o600 ||
		!works(t, embedded.Options{Dir: dir}, strings.TrimSpace(string(b))) {
		t.Errorf("key file: %v (errors %v, %v), want mode 0600 and a valid key", info, err, serr)
	}
	text, _ = mustRun(t, 0, "keys", "bootstrap", "--store", pgtest.New(t), "--scopes", "platform:read,keys:admin",
		"--json")
	var k api.NewKey
	if err := json.Unmarshal([]byte(text), &k); err != nil || k.Secret == "" || !k.Platform || len(k.Scopes) != 2 {
		t.Errorf("keys bootstrap printed %s (error %v), want a platform key with 2 scopes", text, err)
	}
}

// A key that was revoked after the backup is valid again after a restore, which lists it. With
// --revoke-keys no key of the backup is valid.
func TestRestoreListsKeysAndRevokesThem(t *testing.T) {
	ctx := context.Background()
	c, _ := live(t)
	revoked, err := admin.New(c).CreateKey(ctx, api.CreateKey{Name: "leaver", Scopes: []string{"runs:read",
		"keys:admin"}})
	if err != nil {
		t.Fatal(err)
	}
	hook, err := c.CreateWebhook(ctx, api.CreateWebhook{URL: "http://127.0.0.1:1/"})
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	file, plain, strict := filepath.Join(out, "b"), filepath.Join(out, "plain"), filepath.Join(out, "strict")
	mustRun(t, 0, "backup", file)
	if _, err := admin.New(c).RevokeKey(ctx, revoked.ID); err != nil {
		t.Fatal(err)
	}
	text, _ := mustRun(t, 0, "restore", file, "--data", plain)
	has(t, text, revoked.ID, "leaver", "runs:read keys:admin", "valid again", "--revoke-keys",
		string(hook.WebhookID), "perdure webhooks rotate", "keys bootstrap --data "+plain)
	if !works(t, embedded.Options{Dir: plain}, revoked.Secret) {
		t.Error("a key that was revoked after the backup is not valid after a restore, want it valid, as the docs say")
	}

	text, _ = mustRun(t, 0, "restore", file, "--data", strict, "--revoke-keys", "--json")
	var report struct {
		Keys    []perdure.Key `json:"valid_keys"`
		Revoked int           `json:"keys_revoked"`
		KeyFile string        `json:"key_file"`
		Secret  string        `json:"secret"`
		Hooks   []struct {
			Version int `json:"secret_version"`
		} `json:"webhook_secrets"`
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil || len(report.Keys) != 1 || !report.Keys[0].Full() ||
		report.Revoked != 2 || report.Secret != "" ||
		report.KeyFile != filepath.Join(strict, embedded.KeyFile) || len(report.Hooks) != 1 ||
		report.Hooks[0].Version != 1 {
		t.Fatalf("restore --revoke-keys --json: %v, want 1 valid key in a file, 2 revoked, 1 webhook: %s", err, text)
	}
	if works(t, embedded.Options{Dir: strict}, revoked.Secret) {
		t.Error("a key of the backup is valid after a restore with --revoke-keys, want none")
	}
	b, err := os.ReadFile(report.KeyFile)
	if err != nil || !works(t, embedded.Options{Dir: strict}, strings.TrimSpace(string(b))) {
		t.Errorf("the new key is not valid (error %v), want it valid", err)
	}
	// Without a data folder the key is printed.
	database := pgtest.New(t)
	text, _ = mustRun(t, 0, "restore", file, "--store", database, "--revoke-keys")
	has(t, text, "2 keys of the backup are revoked", "prd_")
	secret := "prd_" + strings.Fields(strings.SplitN(text, "prd_", 2)[1])[0]
	if !works(t, embedded.Options{Store: database}, secret) ||
		works(t, embedded.Options{Store: database}, revoked.Secret) {
		t.Error("the printed key is not valid, or a key of the backup is; want only the printed one")
	}
	// An old key file in the folder would not be valid, so it is refused.
	again := filepath.Join(out, "again")
	if err := os.MkdirAll(again, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(again, embedded.KeyFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs := mustRun(t, 1, "restore", file, "--data", again, "--revoke-keys")
	has(t, errs, "move it away")
}

func TestServeRefusesKeyFileReadableByOthers(t *testing.T) {
	dir := t.TempDir()
	srv, err := embedded.Open(embedded.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	srv.Close()
	if err := os.Chmod(filepath.Join(dir, embedded.KeyFile), 0o644); err != nil {
		t.Fatal(err)
	}
	_, errs := mustRun(t, 1, "serve", "--data", dir, "--listen", "127.0.0.1:0")
	has(t, errs, "chmod 600", "--insecure-key-file")
	text, _ := mustRun(t, 0, "config", "check", "--insecure-key-file")
	has(t, text, "insecure_key_file  true")
}

func TestDashboardLink(t *testing.T) {
	live(t)
	text, _ := mustRun(t, 0, "dashboard")
	link, secret, ok := strings.Cut(strings.TrimSpace(text), "#login=")
	if url := os.Getenv("PERDURE_URL"); link != url+"/ui/" || !ok {
		t.Fatalf("dashboard printed %q, want a link to %s/ui/ with a login", text, url)
	}
	login := func() int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "POST", os.Getenv("PERDURE_URL")+"/api/v1/session",
			strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if first, second := login(), login(); first != 201 || second != 401 {
		t.Errorf("two logins with the link = %d and %d, want 201 and 401", first, second)
	}
	// It is no key.
	text, _ = mustRun(t, 0, "dashboard", "--read-only")
	_, secret, _ = strings.Cut(strings.TrimSpace(text), "#login=")
	t.Setenv("PERDURE_KEY", secret)
	_, errs := mustRun(t, 1, "jobs")
	has(t, errs, "the key is not valid")
}
