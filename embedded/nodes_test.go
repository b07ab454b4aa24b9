package embedded_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/natstest"
	"github.com/perdure/perdure/internal/testkit/pgtest"
)

func TestTwoNodesOnOnePostgres(t *testing.T) {
	t.Parallel()
	for name, bell := range map[string]string{
		"LISTEN and NOTIFY":  "",
		"NATS":               natstest.Start(t, natstest.Options{User: "u", Password: "secret"}).URL(),
		"NATS that is away":  "nats://127.0.0.1:1",
		"nothing in between": "none",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opt := embedded.Options{Store: pgtest.New(t), Doorbell: bell}
			var nodes [2]*embedded.Server
			opt.Dir = filepath.Join(t.TempDir(), "data")
			nodes[0] = open(t, opt)
			file, err := os.ReadFile(filepath.Join(opt.Dir, embedded.KeyFile))
			if err != nil || strings.TrimSpace(string(file)) != nodes[0].Key() {
				t.Fatalf("the first node's key is not in its folder: %v", err)
			}
			opt.Dir = t.TempDir()
			if err := os.WriteFile(filepath.Join(opt.Dir, embedded.KeyFile), file, 0o600); err != nil {
				t.Fatal(err)
			}
			if nodes[1] = open(t, opt); nodes[1].Key() != nodes[0].Key() {
				t.Fatal("the second node does not use the key that was copied into its folder")
			}
			a, b := nodes[0], nodes[1]
			for range 2 { // a worker on one node, everything else on the other
				var wg sync.WaitGroup
				wg.Go(func() { work(t, b) })
				status, run := call(t, a, "POST", "/api/v1/runs", `{"kind":"job","wait":"30s"}`)
				wg.Wait()
				if status != 201 && status != 200 || run["state"] != "completed" {
					t.Fatalf("%d %v", status, run)
				}
				a, b = b, a
			}
		})
	}
}

// work takes one run and completes it.
func work(t *testing.T, s *embedded.Server) {
	_, polled := call(t, s, "POST", "/api/v1/workers/w/poll", `{"slots":1,"start":true,"wait":"30s"}`)
	runs := polled["runs"].([]any)
	if len(runs) != 1 {
		t.Errorf("no run came: %v", polled)
		return
	}
	call(t, s, "POST", "/api/v1/workers/w/commit",
		`{"commits":[{"commit_id":"c","run_id":"`+runs[0].(map[string]any)["run_id"].(string)+
			`","epoch":1,"outcome":{"type":"complete"}}]}`)
}

func TestNoPasswordIsLogged(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	opt := embedded.Options{Doorbell: "nats://user:hunter2@127.0.0.1:1,nats://hunter2@127.0.0.1:2",
		Logger: slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, nil))}
	s := open(t, opt)
	s.Close()
	mu.Lock()
	defer mu.Unlock()
	text := log.String()
	if strings.Contains(text, "hunter2") || !strings.Contains(text, "nats://user:xxxxx@127.0.0.1:1") ||
		!strings.Contains(text, "SQLite in memory") {
		t.Errorf("log = %s, want the masked URL and the store, without the password", text)
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func TestInvalidAddressesAreRefused(t *testing.T) {
	for _, x := range []struct{ store, bell, want string }{
		{store: "/var/lib/perdure.db", want: "store: /var/lib/perdure.db is not an address such as postgres://"},
		{store: "mysql://u:hunter2@h/d", want: "store: mysql://u:xxxxx@h/d is not an address"},
		{store: "nats://h:4222", want: "store: nats://h:4222 is not an address"},
		{store: "host=h password=hunter2", want: "store: xxxxx is not an address"},
		{store: "postgres://u:hunter2@h:port/d", want: "store: postgres://u:xxxxx@h:port/d is not an address"},
		{bell: "./nats.sock", want: "doorbell: ./nats.sock is no address that begins with nats://"},
		{bell: "redis://:hunter2@h", want: "doorbell: redis://:xxxxx@h is no address"},
		{bell: "nats://", want: "doorbell: nats:// is not an address such as nats://host:4222"},
		{bell: "nats://hunter2@h,nats://", want: "doorbell: nats://xxxxx@h,nats:// is not"},
		{bell: "none://h", want: "doorbell: none://h is no address"},
		{bell: "nats://u:hun,ter2@h", want: "doorbell: xxxxx is not"},
	} {
		err := embedded.Options{Store: x.store, Doorbell: x.bell}.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), x.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q %q: %v", x.store, x.bell, err)
		}
	}
	for _, good := range []embedded.Options{{}, {Doorbell: "none"}, {Doorbell: "nats://a:1,nats://u:p@b:2"},
		{Doorbell: "tls://h"}, {Doorbell: "postgres://h/d"},
		{Store: "postgres://u:p@h1:5432,h2:5432/d?sslmode=disable"}, {Store: "postgresql:///d?host=/run/postgresql"}} {
		if err := good.Validate(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
}
