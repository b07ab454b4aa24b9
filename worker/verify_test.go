package worker_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/client/admin"
	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/servertest"
	"github.com/perdure/perdure/internal/testkit/storetest"
	"github.com/perdure/perdure/worker"
)

// newKey makes a signing key and returns the files of its private and its public half.
func newKey(t *testing.T) (private, public string) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, typ string, der []byte, err error) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err == nil {
			err = os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	private = write("private", "PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(pub)
	return private, write("public", "PUBLIC KEY", der, err)
}

// altered changes the grants that a server sends.
func altered(wire http.RoundTripper, change func(grant map[string]any)) http.RoundTripper {
	return servertest.Tripper(func(r *http.Request) (*http.Response, error) {
		res, err := wire.RoundTrip(r)
		if err != nil || !strings.HasSuffix(r.URL.Path, "/poll") || res.StatusCode != http.StatusOK {
			return res, err
		}
		var polled map[string]any
		d := json.NewDecoder(res.Body)
		d.UseNumber()
		if err := d.Decode(&polled); err != nil {
			return nil, err
		}
		res.Body.Close()
		for _, g := range polled["runs"].([]any) {
			change(g.(map[string]any))
		}
		body, err := json.Marshal(polled)
		res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		res.Header.Del("Content-Length")
		return res, err
	})
}

// A worker with Trust executes only runs that are exactly as a trusted key has signed them.
func TestWorkerExecutesOnlySignedRuns(t *testing.T) {
	key, public := newKey(t)
	other, otherPublic := newKey(t)
	flip := func(text any) string { return "x" + text.(string)[1:] }
	set := func(name string, to func(g map[string]any) any) func(map[string]any) {
		return func(g map[string]any) { g[name] = to(g) }
	}
	type row struct {
		keys   []string             // the server's signing keys
		trust  []string             // the worker's trusted keys
		change func(map[string]any) // changes the grant
		good   bool                 // the run is executed
	}
	changed := func(change func(map[string]any)) row {
		return row{keys: []string{key}, trust: []string{public}, change: change}
	}
	for name, x := range map[string]row{
		"as it was signed":             {keys: []string{key}, trust: []string{public}, good: true},
		"by the older of two keys":     {keys: []string{other, key}, trust: []string{public, otherPublic}, good: true},
		"by a key that is not trusted": {keys: []string{other, key}, trust: []string{public}},
		"not signed":                   {trust: []string{public}},
		"not signed, without trust":    {good: true},
		"another input":                changed(set("input", func(map[string]any) any { return 2 })),
		"no input":                     changed(func(g map[string]any) { delete(g, "input") }),
		"another queue":                changed(set("queue", func(g map[string]any) any { return flip(g["queue"]) })),
		"another tenant":               changed(set("tenant", func(g map[string]any) any { return flip(g["tenant"]) })),
		"another deadline": changed(set("deadline_at", func(g map[string]any) any {
			return g["deadline_at"].(string)[:20] + "000001Z"
		})),
		"another kind":       changed(set("kind", func(map[string]any) any { return "agent" })),
		"an empty signature": changed(func(g map[string]any) { g["signature"].(map[string]any)["value"] = "" }),
		"without signature":  changed(func(g map[string]any) { delete(g, "signature") }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := servertest.Open(t, embedded.Options{Store: storetest.Address(t), Policy: steady(),
				SigningKeys: x.keys})
			wire := w.Wire
			if x.change != nil {
				wire = altered(wire, x.change)
			}
			var opt worker.Options
			if x.trust != nil {
				var err error
				if opt.Trust, err = worker.LoadTrust(x.trust...); err != nil {
					t.Fatal(err)
				}
			}
			var executed atomic.Int64
			wk := worker.New(w.Via(wire), opt)
			worker.Handle(wk, "job", func(_ context.Context, n int) (int, error) { executed.Add(1); return n, nil })
			worker.Agent(wk, "agent", func(_ *agent.Context, n int) (int, error) { executed.Add(1); return n, nil })
			w.Work(wk)
			r := w.End(w.Start(perdure.Submission{Kind: "job", Input: json.RawMessage(` 1 `)}))
			if x.good {
				if r.State != perdure.Completed || executed.Load() != 1 {
					t.Errorf("run %s: %s, %+v, executed %d times, want completed once",
						r.RunID, r.State, r.Error, executed.Load())
				}
				return
			}
			if r.State != perdure.Failed || r.Error.Code != perdure.CodeSignatureInvalid || executed.Load() != 0 {
				t.Errorf("run %s: %s, %+v, executed %d times, want failed with %s and not executed",
					r.RunID, r.State, r.Error, executed.Load(), perdure.CodeSignatureInvalid)
			}
			if d, err := admin.New(w.C).DeadLetter(w.Ctx,
				r.RunID); err != nil || d.Cause != string(perdure.CodeSignatureInvalid) {
				t.Errorf("dead letter of run %s: %+v, %v, want the cause %s", r.RunID, d, err,
					perdure.CodeSignatureInvalid)
			}
		})
	}
}

// A grant long after its signed deadline is a replay. A worker's clock may be ahead by minutes.
func TestWorkerRejectsReplayedGrants(t *testing.T) {
	key, public := newKey(t)
	text, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := perdure.NewSigner(text)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		late time.Duration
		good bool
	}{"within the slack of clocks": {time.Minute, true}, "long past it": {6 * time.Minute, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := servertest.Open(t, embedded.Options{Store: storetest.Address(t), Policy: steady(),
				SigningKeys: []string{key}})
			wire := altered(w.Wire, func(g map[string]any) {
				at := perdure.At(time.Now().Add(-x.late))
				s := signer.Sign(&perdure.SignedRun{
					Tenant: perdure.TenantID(g["tenant"].(string)), RunID: perdure.RunID(g["run_id"].(string)),
					Kind: "job", Queue: g["queue"].(string), Input: []byte("1"), DeadlineAt: at,
				})
				g["deadline_at"], g["signature"] = at.String(), map[string]any{"key_id": s.KeyID, "value": s.Value}
			})
			trust, err := worker.LoadTrust(public)
			if err != nil {
				t.Fatal(err)
			}
			var executed atomic.Int64
			wk := worker.New(w.Via(wire),
				worker.Options{Trust: trust})
			worker.Handle(wk, "job", func(_ context.Context, n int) (int, error) { executed.Add(1); return n, nil })
			w.Work(wk)
			r := w.End(w.Start(perdure.Submission{Kind: "job", Input: json.RawMessage("1")}))
			switch {
			case x.good && (r.State != perdure.Completed || executed.Load() != 1):
				t.Errorf("run %s: %s %+v, executed %d times; want completed", r.RunID, r.State, r.Error,
					executed.Load())
			case x.good:
			case r.State != perdure.Failed || r.Error.Code != perdure.CodeSignatureInvalid || executed.Load() != 0:
				t.Errorf("run %s: %s %+v, executed %d times; want failed with signature_invalid",
					r.RunID, r.State, r.Error, executed.Load())
			}
		})
	}
}

func TestLoadTrustRefusesBadFiles(t *testing.T) {
	key, _ := newKey(t)
	for _, files := range [][]string{nil, {"/nowhere"}, {key}, {t.TempDir()}} {
		if trust, err := worker.LoadTrust(files...); err == nil || trust != nil {
			t.Errorf("LoadTrust(%v) = %v, want an error", files, trust)
		}
	}
}
