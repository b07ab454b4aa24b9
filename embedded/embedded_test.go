package embedded_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/perdure/perdure/embedded"
	"github.com/perdure/perdure/internal/testkit/storetest"
)

// keys are the platform keys of shared stores, by their addresses: the first start of a store makes its one.
var keys sync.Map

func open(t *testing.T, opt embedded.Options) *embedded.Server {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	at := test + " " + opt.Store // databases are used again by other tests
	if key, ok := keys.Load(at); ok && opt.Store != "" && opt.Dir == "" {
		opt.Key = key.(string)
	}
	s, err := embedded.Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	keys.LoadOrStore(at, s.Key())
	t.Cleanup(func() { s.Close() })
	return s
}

func call(t *testing.T, s *embedded.Server, method, path, body string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequest(method, "http://perdure"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Key())
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := (&http.Client{Transport: s.Transport()}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%s %s: %s", method, path, b)
	}
	return res.StatusCode, out
}

func TestRunWithoutSocket(t *testing.T) {
	s := open(t, embedded.Options{Store: storetest.Address(t)})
	status, run := call(t, s, "POST", "/api/v1/runs", `{"kind":"job","input":{"n":1}}`)
	if status != 201 || run["state"] != "queued" {
		t.Fatalf("%d %v", status, run)
	}
	_, polled := call(t, s, "POST", "/api/v1/workers/w1/poll", `{"slots":1,"start":true}`)
	grant := polled["runs"].([]any)[0].(map[string]any)
	status, done := call(t, s, "POST", "/api/v1/workers/w1/commit",
		`{"commits":[{"commit_id":"c","run_id":"`+grant["run_id"].(string)+
			`","epoch":1,"outcome":{"type":"complete","result":"yes"}}]}`)
	if status != 200 || done["results"].([]any)[0].(map[string]any)["state"] != "completed" {
		t.Fatalf("%d %v", status, done)
	}
	status, run = call(t, s, "GET", "/api/v1/runs/"+run["run_id"].(string)+"/join", "")
	if status != 200 || run["result"] != "yes" {
		t.Fatalf("%d %v", status, run)
	}
}

func TestFirstStartWritesPrivateKeyFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	opt := embedded.Options{Dir: dir, Store: storetest.Address(t)}
	s := open(t, opt)
	info, err := os.Stat(filepath.Join(dir, embedded.KeyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	key := s.Key()
	_, run := call(t, s, "POST", "/api/v1/runs", `{"kind":"job"}`)
	s.Close()
	s = open(t, opt)
	if s.Key() != key {
		t.Error("another key after a restart")
	}
	if status, _ := call(t, s, "GET", "/api/v1/runs/"+run["run_id"].(string), ""); status != 200 {
		t.Errorf("the run is gone: %d", status)
	}
	s.Close()
	if err := os.WriteFile(filepath.Join(dir, embedded.KeyFile), []byte("prd_000000000000_nonsense_00000000\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Open(opt); err == nil || !strings.Contains(err.Error(), "is not valid") {
		t.Errorf("Open = %v, want that the key is not valid", err)
	}
}
