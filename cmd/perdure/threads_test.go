package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

func TestThreadsOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	text, _ := mustRun(t, 0, "threads")
	has(t, text, "No threads.")
	named, err := c.CreateThread(t.Context(), json.RawMessage(`{"title":"Trip \u202e to Oslo"}`))
	if err != nil {
		t.Fatal(err)
	}
	chat, err := c.CreateThread(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Start(t.Context(), perdure.Submission{Kind: "chat", ThreadID: chat.ThreadID,
		Messages: []perdure.Message{{Role: "user", Content: json.RawMessage(`"how far is it?"`)}}})
	if err != nil {
		t.Fatal(err)
	}
	text, _ = mustRun(t, 0, "threads")
	has(t, text, "THREAD", string(named.ThreadID), "to Oslo", "how far is it?", "user: how far is it?",
		string(r.RunID), "queued")
	if strings.Index(text, string(chat.ThreadID)) > strings.Index(text, string(named.ThreadID)) {
		t.Errorf("the thread with the last activity is not the first:\n%s", text)
	}
	text, _ = mustRun(t, 0, "threads", "-n", "1", "--json")
	var page api.Threads
	if err := json.Unmarshal([]byte(text), &page); err != nil || len(page.Threads) != 1 ||
		page.Threads[0].LiveRun == nil || page.NextCursor == "" {
		t.Errorf("threads as JSON: %s (%v), want the first one and a cursor", text, err)
	}
	_, errs := mustRun(t, 0, "threads", "-n", "1")
	has(t, errs, "There are more")
	text, _ = mustRun(t, 0, "threads", "--cursor", page.NextCursor)
	has(t, text, string(named.ThreadID))
	mustRun(t, 2, "threads", "-n", "201")

	// The thread of a worker is not among those of people.
	worker, err := c.CreateThread(t.Context(), json.RawMessage(`{"parent_run_id":"`+string(r.RunID)+`","key":"w"}`))
	if err != nil {
		t.Fatal(err)
	}
	if text, _ = mustRun(t, 0, "threads"); strings.Contains(text, string(worker.ThreadID)) {
		t.Errorf("threads have that of a worker:\n%s", text)
	}
	text, _ = mustRun(t, 0, "threads", "--all")
	has(t, text, string(worker.ThreadID), "(of a worker)", string(chat.ThreadID))
}
