package httpd

import (
	"fmt"
	"strings"
	"testing"
)

// makeSchedule makes a schedule and gives its path.
func (w *world) makeSchedule(name string) string {
	w.t.Helper()
	path := "/api/v1/schedules/" + name
	w.do("PUT", path, `{"every":"1h","kind":"scheduled","queue":"scheduled"}`).is(201)
	return path
}

func TestScheduleOverTheAPI(t *testing.T) {
	w := newWorld(t, setup{})
	body := `{"cron":"30 2 * * *","timezone":"Europe/Berlin","kind":"report","input":{"n":1},"priority":5,` +
		`"description":"nightly","jitter":"10m","overlap":"skip"}`
	made := w.do("PUT", "/api/v1/schedules/nightly", body).is(201)
	again := w.do("PUT", "/api/v1/schedules/nightly", body).is(200)
	if again["schedule_id"] != made["schedule_id"] || again["next_at"] != made["next_at"] ||
		again["changed_at"] != made["changed_at"] {
		t.Errorf("repeated: %v, want %v", again, made)
	}
	sub := made["submission"].(obj)
	if made["state"] != "active" || made["missed"] != "once" || sub["kind"] != "report" || sub["priority"] != 5.0 {
		t.Errorf("schedule = %v", made)
	}
	w.do("POST", "/api/v1/schedules", `{"name":"nightly","every":"1h","kind":"x"}`).refuses(409, "name_taken")
	if w.get("/api/v1/schedules/nightly").is(200)["schedule_id"] != made["schedule_id"] {
		t.Error("the schedule is another one")
	}
	list := w.get("/api/v1/schedules").is(200)["schedules"].([]any)
	if len(list) != 1 {
		t.Errorf("%d schedules, want 1", len(list))
	}
	upcoming := w.get("/api/v1/schedules/nightly/next?n=3").is(200)["instants"].([]any)
	if len(upcoming) != 3 || upcoming[0].(obj)["at"] != made["next_at"] ||
		!strings.Contains(upcoming[0].(obj)["local"].(string), " 02:30:00 ") {
		t.Errorf("next = %v, want three from %s on", upcoming, made["next_at"])
	}
	run := w.do("POST", "/api/v1/schedules/nightly/trigger", "").is(201)
	if run["schedule_id"] != made["schedule_id"] || run["schedule_name"] != "nightly" || run["scheduled_for"] != nil ||
		run["kind"] != "report" {
		t.Errorf("triggered run = %v", run)
	}
	if w.do("POST", "/api/v1/schedules/nightly/pause", "").is(200)["state"] != "paused" ||
		w.do("PUT", "/api/v1/schedules/nightly", body).is(200)["state"] != "paused" ||
		w.do("PUT", "/api/v1/schedules/nightly",
			strings.Replace(body, "{", `{"paused":false,`, 1)).is(200)["state"] != "active" {
		t.Error("a schedule is paused until somebody resumes it")
	}
	w.do("DELETE", "/api/v1/schedules/nightly", "").is(200)
	w.get("/api/v1/schedules/nightly").refuses(404, "not_found")
}

func TestRefusedSchedules(t *testing.T) {
	w := newWorld(t, setup{})
	for _, x := range []struct {
		body, code, field string
		status            int
	}{
		{`{"kind":"x"}`, "unprocessable", "cron", 422},
		{`{"kind":"x","cron":"* * * * *","every":"1m"}`, "unprocessable", "cron", 422},
		{`{"kind":"x","cron":"30 2 30 2 *"}`, "never_fires", "cron", 422},
		{`{"kind":"x","cron":"* * * * *","timezone":"Mars/Base"}`, "unprocessable", "timezone", 422},
		{`{"kind":"x","every":"1s"}`, "unprocessable", "every", 422},
		{`{"kind":"x","every":"1h","delay":"1m"}`, "unprocessable", "delay", 422},
		{`{"kind":"x","every":"1h","wait":"1m"}`, "invalid", "wait", 400},
		{`{"every":"1h"}`, "invalid", "kind", 400},
		{`{"kind":"x","every":"1h","start_at":"2026-01-02T00:00:00Z","end_at":"2026-01-01T00:00:00Z"}`,
			"unprocessable", "end_at", 422},
		{`{"kind":"x","every":"1h","overlap":"never"}`, "unprocessable", "overlap", 422},
		{fmt.Sprintf(`{"kind":"x","every":"1h","input":%q}`, strings.Repeat("a", 70_000)), "too_large", "input", 413},
	} {
		p := w.do("PUT", "/api/v1/schedules/s", x.body).refuses(x.status, x.code)
		if p["field"] != x.field {
			t.Errorf("%.80s: field %v, want %s", x.body, p["field"], x.field)
		}
	}
	w.get("/api/v1/schedules/s").refuses(404, "not_found")
	w.get("/api/v1/schedules/s/next?n=0").refuses(400, "invalid")
}
