package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

func TestGroupsOnTheCommandLine(t *testing.T) {
	c, _ := live(t)
	has(t, first(mustRun(t, 0, "groups")), "No groups.")
	var runs []perdure.RunID
	for _, kind := range []string{"a", "b"} {
		r, err := c.Start(t.Context(), perdure.Submission{Kind: kind})
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r.RunID)
	}
	old, err := c.CreateGroup(t.Context(), api.CreateGroup{RunIDs: runs, Mode: perdure.ModeAny})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Cancel(t.Context(), runs[1], "enough", 0); err != nil {
		t.Fatal(err)
	}
	last, err := c.CreateGroup(t.Context(), api.CreateGroup{RunIDs: runs, Timeout: perdure.Duration(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	text := first(mustRun(t, 0, "groups"))
	has(t, text, "GROUP", string(old.GroupID), "satisfied", "any", "1/2", string(last.GroupID), "open", "all")
	if strings.Index(text, string(last.GroupID)) > strings.Index(text, string(old.GroupID)) {
		t.Errorf("the newest group is not the first:\n%s", text)
	}
	text = first(mustRun(t, 0, "groups", "list", "--state", "ended"))
	if has(t, text, string(old.GroupID)); strings.Contains(text, string(last.GroupID)) {
		t.Errorf("an open group is among those that have ended:\n%s", text)
	}
	text, stderr := mustRun(t, 0, "groups", "list", "--limit", "1", "--json")
	var page api.Groups
	if err := json.Unmarshal([]byte(text), &page); err != nil || len(page.Groups) != 1 ||
		page.Groups[0].GroupID != last.GroupID || page.NextCursor == "" || stderr != "" {
		t.Errorf("groups as JSON: %s (%v, %q), want the newest one and a cursor", text, err, stderr)
	}
	text, stderr = mustRun(t, 0, "groups", "list", "--limit", "1")
	has(t, text, string(last.GroupID))
	has(t, stderr, "--cursor "+page.NextCursor)
	has(t, first(mustRun(t, 0, "groups", "list", "--cursor", page.NextCursor)), string(old.GroupID))

	has(t, first(mustRun(t, 0, "groups", "show", string(last.GroupID))), "1 of 2, 0 completed", "deadline",
		string(runs[0])+"  not ended", string(runs[1])+"  cancelled")
	has(t, first(mustRun(t, 0, "groups", "show", string(old.GroupID))), "1 of 2 when it was decided")
	var one api.Group
	text = first(mustRun(t, 0, "groups", "show", "--json", string(last.GroupID)))
	if err := json.Unmarshal([]byte(text), &one); err != nil || len(one.RunIDs) != 2 || len(one.EndedRuns) != 1 {
		t.Errorf("a group as JSON: %s (%v), want 2 runs of which 1 has ended", text, err)
	}
	_, stderr = mustRun(t, 1, "groups", "show", string(runs[0]))
	has(t, stderr, "no such group")
	_, stderr = mustRun(t, 1, "groups", "list", "--state", "odd")
	has(t, stderr, "state")
	mustRun(t, exitUsage, "groups", "show")
}
