package httpd

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

func TestDeadLetters(t *testing.T) {
	w := newWorld(t, setup{})
	var ids []string
	for range 3 {
		g := w.running(`{"kind":"poison","input":{"n":1}}`)
		w.commits(g, `"outcome":{"type":"reject","reason":"not mine"}`)
		ids = append(ids, g["run_id"].(string))
	}
	page := w.get("/api/v1/dlq?limit=2").is(200)
	rest := w.get("/api/v1/dlq?limit=2&cursor=" + page["next_cursor"].(string)).is(200)
	if len(page["dead_letters"].([]any)) != 2 || len(rest["dead_letters"].([]any)) != 1 || rest["next_cursor"] != nil {
		t.Errorf("%v %v", page, rest)
	}
	letter := w.get("/api/v1/dlq/" + ids[0]).is(200)
	if letter["cause"] != "rejected" || letter["message"] != "not mine" || letter["kind"] != "poison" {
		t.Errorf("letter = %v, want cause = rejected, message = not mine, kind = poison", letter)
	}
	again := w.do("POST", "/api/v1/dlq/"+ids[0]+"/redrive", "").is(201)
	if again["retry_of_run_id"] != ids[0] || again["input"].(obj)["n"] != 1.0 {
		t.Errorf("again = %v, want retry_of_run_id = %v, input.n = 1", again, ids[0])
	}
	if twice := w.do("POST", "/api/v1/dlq/"+ids[0]+"/redrive", "").is(200); twice["run_id"] != again["run_id"] {
		t.Errorf("redriven twice: %v", twice)
	}
	w.do("DELETE", "/api/v1/dlq/"+ids[1], "").is(200)
	w.do("DELETE", "/api/v1/dlq/"+ids[1], "").refuses(404, "not_found")
	w.get("/api/v1/dlq/"+ids[1]).refuses(404, "not_found")
	w.get(runs + "/" + ids[1]).is(200) // the run stays
}

func TestDeadLetterHasItsHistory(t *testing.T) {
	w := newWorld(t, setup{})
	thread := w.makeThread()
	w.start(`{"kind":"parent"}`)
	parent := w.lease("w", `,"start":true`)
	kid := w.commits(parent, `"children":[{"key":"k","kind":"job","max_attempts":1,"thread_id":"`+thread+`","input":"`+
		strings.Repeat("x", 100_000)+`"}],
		"waits":[{"id":"j","type":"children","keys":["k"]}],
"outcome":{"type":"suspend"}`)["children"].([]any)[0].(obj)["run_id"].(string)
	g := w.lease("busy", `,"start":true`)
	w.do("POST", "/api/v1/workers/busy/heartbeat",
		`{"runs":[{"run_id":"%s","epoch":%v,"activity":"tool_executing","progress":{"done":"half"}}]}`, kid,
		g["epoch"]).is(200)
	w.commits(g, `"outcome":{"type":"fail","error":{"code":"broken","message":"it broke"}}`)
	l := w.get("/api/v1/dlq/" + kid).is(200)
	run, attempts, events := l["run"].(obj), l["attempts"].([]any), l["events"].([]any)
	if run["activity"] != "tool_executing" || run["progress"].(obj)["done"] != "half" ||
		run["input"].(obj)["ref"] == nil || run["parent_run_id"] != parent["run_id"] {
		t.Errorf("the run: %v", run)
	}
	if l["cause"] != "broken" || l["parent"].(obj)["job_id"] != parent["run_id"] ||
		l["fallback"].(obj)["reason"] != "broken" || l["expires_at"] == nil {
		t.Errorf("l = %v, want cause = broken, parent.job_id = %v, fallback.reason = broken, expires_at set",
			l, parent["run_id"])
	}
	if a := attempts[0].(obj); len(attempts) != 1 || a["worker_id"] != "busy" || a["outcome"] != "failed" ||
		a["started_at"] == nil || a["ended_at"] == nil ||
		a["error"].(obj)["message"] != "it broke" {
		t.Errorf("attempts: %v", attempts)
	}
	if last := events[len(events)-1].(obj); last["type"] != "run:failed" {
		t.Errorf("events: %v", events)
	}
}

func TestBulkRedriveAndDiscard(t *testing.T) {
	w := newWorld(t, setup{})
	var ids []string
	for range 3 {
		ids = append(ids, w.deadLetter())
	}
	causes := w.get("/api/v1/dlq/causes").is(200)["causes"].([]any)
	if c := causes[0].(obj); len(causes) != 1 || c["cause"] != "broken" || c["kind"] != "job" || c["count"] != 3.0 ||
		c["redriven"] != 0.0 || c["example_run_id"] != ids[2] {
		t.Errorf("causes = %v, want 3 of kind job with cause broken, none redriven", causes)
	}
	for _, limit := range []string{"0", "-1", "1001"} {
		for _, what := range []string{"redrive", "discard"} {
			if p := w.do("POST", "/api/v1/dlq/"+what, `{"cause":"broken","limit":`+limit+`}`).refuses(400,
				"invalid"); p["field"] != "limit" {
				t.Errorf("%s with a limit of %s: %v", what, limit, p)
			}
		}
	}
	first := w.do("POST", "/api/v1/dlq/redrive", `{"cause":"broken","limit":2}`).is(200)
	results := first["results"].([]any)
	if first["done"] != 2.0 || results[0].(obj)["run_id"] != ids[0] || results[0].(obj)["redriven_by_run_id"] == nil {
		t.Errorf("the oldest first: %v", first)
	}
	rest := w.do("POST", "/api/v1/dlq/redrive", `{"kind":"job","queue":"default"}`).is(200)
	if rest["done"] != 1.0 || rest["results"].([]any)[0].(obj)["run_id"] != ids[2] {
		t.Errorf("those that are left: %v", rest)
	}
	if none := w.do("POST", "/api/v1/dlq/redrive", `{"cause":"broken"}`).is(200); none["done"] != 0.0 {
		t.Errorf("all are redriven: %v", none)
	}
	named := w.do("POST", "/api/v1/dlq/redrive", `{"ids":["%s","%s"]}`, ids[0], unknown).is(200)["results"].([]any)
	if a, b := named[0].(obj), named[1].(obj); a["redriven_by_run_id"] != results[0].(obj)["redriven_by_run_id"] ||
		b["error"].(obj)["code"] != "not_found" || b["ok"] != nil {
		t.Errorf("results = %v, want the run of the first redrive, and not_found", named)
	}
	letters := w.get("/api/v1/dlq?cause=broken&kind=job&limit=1").is(200)["dead_letters"].([]any)
	if l := letters[0].(obj); l["run_id"] != ids[2] || l["redriven_by_run_id"] == nil {
		t.Errorf("l = %v, want run_id = %v, redriven_by_run_id set", l, ids[2])
	}
	if d := w.do("POST", "/api/v1/dlq/discard", `{"cause":"broken"}`).is(200); d["done"] != 3.0 {
		t.Errorf("d = %v, want done = 3", d)
	}
	if left := w.get("/api/v1/dlq").is(200)["dead_letters"].([]any); len(left) != 0 {
		t.Errorf("left = %v, want 0 entries", left)
	}
}

func testSigner(t testing.TB) *perdure.Signer {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := perdure.NewSigner(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A grant has all that it takes to verify it, in the very bytes that were signed, whatever was written at the door.
func TestGrantSignatureCanBeVerifiedByWorker(t *testing.T) {
	w := newWorld(t, setup{signer: testSigner(t)})
	keys := w.get("/api/v1/signing-keys").is(200)["keys"].([]any)
	block, _ := pem.Decode([]byte(keys[0].(obj)["public_key"].(string)))
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil || len(keys) != 1 || keys[0].(obj)["signs"] != true {
		t.Fatal(keys, err)
	}
	for _, input := range []string{``, `,"input":null`, `,"input": { "b" : [ 1, 2.50 ], "a":"<&>\u00e9 é\u2028  \" " }`,
		`,"input":1e2`, `,"input":"` + strings.Repeat("x", 100_000) + `"`} {
		w.start(`{"kind":"job"` + input + `}`)
		a := w.do("POST", "/api/v1/workers/w/poll", `{"slots":1,"wait":"0s"}`)
		a.is(200)
		var polled struct {
			Runs []map[string]json.RawMessage
		}
		if err := json.Unmarshal(a.body, &polled); err != nil || len(polled.Runs) != 1 {
			t.Fatal(err)
		}
		g := polled.Runs[0]
		text := func(name string) (s string) {
			if err := json.Unmarshal(g[name], &s); err != nil {
				t.Fatal(name, err)
			}
			return s
		}
		var sig struct {
			KeyID string `json:"key_id"`
			Value string `json:"value"`
		}
		if err := json.Unmarshal(g["signature"], &sig); err != nil {
			t.Fatal(err)
		}
		digest := fmt.Sprintf("%x", sha256.Sum256(g["input"]))
		signed := ""
		for _, f := range []string{"perdure-run-v1", sig.KeyID, text("tenant"), text("run_id"), text("kind"),
			text("queue"), digest, text("deadline_at")} {
			signed += fmt.Sprintf("%d:%s,", len(f), f)
		}
		value, err := base64.StdEncoding.DecodeString(sig.Value)
		if err != nil || !ed25519.Verify(parsed.(ed25519.PublicKey), []byte(signed), value) {
			t.Errorf("%.60s does not verify from\n%.400s", input, a.body)
		}
	}
}

func TestTenantThatRequiresSignatures(t *testing.T) {
	w := newWorld(t, setup{signer: testSigner(t)})
	admin := w.as(w.admin)
	if x := admin.do("PUT", "/api/admin/tenants/a",
		`{"require_signatures":true}`).is(200); x["require_signatures"] != true || x["tenant"] != "a" {
		t.Errorf("x = %v, want require_signatures = true, tenant = a", x)
	}
	admin.do("PUT", "/api/admin/tenants/a", `{}`).is(200)
	if x := admin.get("/api/admin/tenants/a").is(200); x["require_signatures"] != true {
		t.Errorf("what is left out is changed: %v", x)
	}
	g := w.running(`{"kind":"job","max_attempts":1}`)
	if g["signature"] == nil || g["tenant"] != "a" {
		t.Errorf("g = %v, want signature set, tenant = a", g)
	}
	w.commits(g, `"outcome":{"type":"reject","reason":"signature_invalid"}`)
	dead := g["run_id"].(string)
	w.do("POST", "/api/v1/dlq/"+dead+"/redrive", "").refuses(409, "signature_invalid")
	w.send(ask{method: "POST", path: "/api/v1/dlq/" + dead + "/redrive", key: w.key, body: `{"resign":true}`,
		header: http.Header{"Idempotency-Key": {"k"}}}).is(201)
	w.running(`{"kind":"other"}`)
}
