package httpd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/access"
)

func TestJournalAndInboxAreReadWithoutALease(t *testing.T) {
	w := newWorld(t, setup{})
	g := w.running(`{"kind":"agent","class":"agent"}`)
	id := g["run_id"].(string)
	at := runs + "/" + id
	large := `"` + strings.Repeat("é", 300_000) + `"`
	w.commits(g, `"journal":[{"key":"plan","value":{"n":1}},{"key":"page","value":`+large+`},{"key":"none","value":0}]`)
	w.do("POST", at+"/signals/go", `{"data":{"fast":true}}`).is(200)
	w.do("POST", at+"/signals/go", `{"data":`+large+`}`).is(200)
	reader := w.as(w.newKey("a", func(op *access.CreateKey) { op.Scopes = []perdure.Scope{perdure.ScopeRead} }))
	look := func() {
		t.Helper()
		steps := reader.get(at + "/journal/entries").is(200)
		list := steps["entries"].([]any)
		if len(list) != 3 || steps["next_after"] != nil {
			t.Fatalf("journal = %.300v, want three entries and no next page", steps)
		}
		plan, page, none := list[0].(obj), list[1].(obj), list[2].(obj)
		if plan["key"] != "plan" || plan["seq"] != 1.0 || plan["value"].(obj)["n"] != 1.0 || plan["size"] != 7.0 ||
			plan["at"] == nil {
			t.Errorf("first step = %v, want key, number, value, size and time", plan)
		}
		if page["value"] != nil || page["size"] != 600_002.0 || page["preview"] != `"`+strings.Repeat("é", 1023) {
			t.Errorf("a large step = %.200v, want its size and its first 1024 characters", page)
		}
		if none["key"] != "none" || none["size"] != 1.0 || none["value"] != 0.0 {
			t.Errorf("the last step = %v, want the number 0", none)
		}
		if whole := reader.get(at + "/journal/entries/2").is(200); whole["value"] != strings.Repeat("é", 300_000) {
			t.Errorf("the large step alone has %d characters, want all", len(fmt.Sprint(whole["value"])))
		}
		items := reader.get(at + "/inbox/items").is(200)["items"].([]any)
		if len(items) != 2 {
			t.Fatalf("inbox = %.300v, want two items", items)
		}
		if i := items[0].(obj); i["type"] != "signal" || i["name"] != "go" || i["value"].(obj)["fast"] != true ||
			i["status"] == nil || i["at"] == nil {
			t.Errorf("first item = %v, want a signal with its value, status and time", i)
		}
		if whole := reader.get(at + "/inbox/items/2").is(200); whole["value"] != strings.Repeat("é", 300_000) {
			t.Errorf("the large item alone = %.100v, want all of it", whole)
		}
	}
	look()
	before := w.get(at).is(200)["last_seq"]
	look()
	if after := w.get(at).is(200)["last_seq"]; after != before {
		t.Errorf("reading has changed the run: line %v, want %v", after, before)
	}
	page := reader.get(at + "/journal/entries?limit=2").is(200)
	if page["next_after"] != 2.0 || len(page["entries"].([]any)) != 2 {
		t.Errorf("a page of two = %.200v, want 2 entries and the next one after 2", page)
	}
	rest := reader.get(at + "/journal/entries?after=2&limit=1").is(200)["entries"].([]any)
	if len(rest) != 1 || rest[0].(obj)["key"] != "none" {
		t.Errorf("the page after it = %v, want the last entry", rest)
	}
	if all := reader.get(at + "/replay").is(200); len(all["journal"].([]any)) == 0 {
		t.Errorf("a replay = %.200v, want the journal in it", all)
	}
	queued := w.start(`{"kind":"nobody-has-announced-it"}`)
	if class := reader.get(runs + "/" + queued + "/replay").is(200)["class"]; class != "open" {
		t.Errorf("the class of a replay of a run of an unknown kind = %v, want open", class)
	}
	w.commits(g, complete)
	look() // also of a run that has ended

	for _, path := range []string{at + "/journal/entries/9", at + "/journal/entries/x", at + "/inbox/items/0",
		runs + "/" + strings.Repeat("0", 8) + id[8:] + "/inbox/items"} {
		reader.get(path).is(404)
	}
	reader.get(at + "/journal/entries?limit=201").is(400)
	theirs := w.as(w.newKey("b", nil))
	for _, path := range []string{"/journal/entries", "/journal/entries/1", "/inbox/items", "/inbox/items/1",
		"/replay"} {
		theirs.get(at + path).is(404)
	}
}
