package httpd

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// Runs are searched over REST and over the socket with the same fields. Only those of the tenant are
// found.
func TestRunsAreSearched(t *testing.T) {
	w := newWorld(t, setup{})
	other := w.newKey("b", nil)
	report := w.running(`{"kind":"report","metadata":{"team":"cube"},"class":"agent","timeout":"2h"}`)
	running := report["run_id"].(string)
	failing := w.running(`{"kind":"mail","class":"agent","max_attempts":1}`)
	w.commits(failing, `"outcome":{"type":"fail","error":{"code":"no_paper","message":"the tray is empty"}}`)
	failed := failing["run_id"].(string)
	held := w.running(`{"kind":"agent","class":"agent","timeout":"9h"}`)
	w.commits(held, `"outcome":{"type":"fail","defect":true,"error":{"code":"panic","message":"a nil map"}}`)
	hold := held["run_id"].(string)
	queued := w.start(`{"kind":"report.daily","metadata":{"host":"cube"},"class":"agent","timeout":"1h"}`)
	now := w.e.Now()
	soon := now.Add(90 * time.Minute).String()
	for query, want := range map[string][]string{
		"id_part=" + failed[28:]:              {failed},
		"id_part=" + failed:                   {failed},
		"kind_prefix=report":                  {queued, running},
		"kind_prefix=report&kind=report":      {running},
		"metadata_value=cube":                 {queued, running},
		"metadata_value=cube&status=running":  {running},
		"error_code=no_paper":                 {failed},
		"error_code=panic":                    nil,
		"class=process":                       nil,
		"seen_before=2000-01-01T00:00:00Z":    nil,
		"seen_before=2999-01-01T00:00:00Z":    {running},
		"held=true":                           {hold},
		"held=true&kind_prefix=mail":          nil,
		"deadline_before=" + soon:             {queued},
		"finished_after=2000-01-01T00:00:00Z": {failed},
		"finished_after=2999-01-01T00:00:00Z": nil,
		"worker_id=w&kind_prefix=rep":         {running},
		"worker_id=nobody":                    nil,
	} {
		ids := func(list []any) (out []string) {
			for _, r := range list {
				out = append(out, r.(obj)["run_id"].(string))
			}
			return out
		}
		if got := ids(w.get(runs + "?" + query).is(200)["runs"].([]any)); !slices.Equal(got, want) {
			t.Errorf("%s: runs = %v, want %v", query, got, want)
		}
		if got := w.as(other).get(runs + "?" + query).is(200)["runs"].([]any); len(got) > 0 {
			t.Errorf("%s: another tenant sees %v", query, got)
		}
		counted := 0.0
		for _, n := range w.get("/api/v1/runs/counts?" + query).is(200)["status"].(obj) {
			counted += n.(float64)
		}
		if int(counted) != len(want) {
			t.Errorf("%s: %v runs are counted, want %d", query, counted, len(want))
		}
		var filter []string
		for part := range strings.SplitSeq(query, "&") {
			name, v, _ := strings.Cut(part, "=")
			value := `"` + v + `"`
			if name == "status" {
				value = "[" + value + "]"
			}
			filter = append(filter, `"`+name+`":`+value)
		}
		v := w.view(false)
		v.say(`{"type":"watch","id":"x","of":"runs","filter":{%s}}`, strings.Join(filter, ","))
		v.read()
		if got := ids(v.last["x"]["runs"].([]any)); !slices.Equal(got, want) {
			t.Errorf("%s over the socket: runs = %v, want %v", query, got, want)
		}
	}
	for _, query := range []string{"id_part=abc", "id_part=ABCDEF12", "id_part=%25", "held=1", "held=false",
		"deadline_before=soon", "class=x", "seen_before=1", "finished_after=1",
		"error_code=" + strings.Repeat("x", 1025)} {
		w.get(runs+"?"+query).refuses(400, "invalid")
	}
}

// A search that ends before its page is full says how far back it looked, and its cursor goes on there.
func TestSearchTellsHowFarItLooked(t *testing.T) {
	w := newWorld(t, setup{})
	first := w.start(`{"kind":"job"}`)
	for range 2 {
		w.do("POST", runs+"/batch", `{"runs":[`+strings.Repeat(`{"kind":"job"},`, 599)+`{"kind":"job"}]}`).is(200)
	}
	w.s.pageTime = 0
	page := w.get(runs + "?id_part=" + first).is(200)
	back, _ := page["searched_to"].(string)
	var at perdure.Instant
	err := at.UnmarshalJSON([]byte(`"` + back + `"`))
	if err != nil || at > w.e.Now() || at < perdure.IDTime(first) || len(page["runs"].([]any)) != 0 {
		t.Fatalf("searched_to = %q in a page of %v, want a time after that of run %s (%v)", back, page, first, err)
	}
	page = w.get(runs + "?id_part=" + first + "&cursor=" + page["next_cursor"].(string)).is(200)
	if list := page["runs"].([]any); len(list) != 1 || list[0].(obj)["run_id"] != first || page["searched_to"] != nil {
		t.Errorf("the next page = %v, want run %s and no searched_to", page, first)
	}
	if page := w.get(runs + "?limit=5").is(200); page["searched_to"] != nil || page["next_cursor"] == nil {
		t.Errorf("a full page = %v, want a cursor and no searched_to", page)
	}
}
