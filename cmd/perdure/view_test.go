package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/perdure/perdure"
)

func TestViewPrintsTheLatestValue(t *testing.T) {
	c, _ := live(t)
	g := hold(t, c, "plans")
	for i, value := range []string{`1`, `{"step":2}`} {
		err := commitOf(t, c, g, perdure.Commit{ID: fmt.Sprint("c", i),
			Views: []perdure.View{{Name: "plan", Value: json.RawMessage(value)}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	run := string(g.RunID)
	if out, _ := mustRun(t, 0, "view", run, "plan"); out != "{\"step\":2}\n" {
		t.Errorf("view plan = %q, want the second value", out)
	}
	has(t, first(mustRun(t, 0, "view", run)), "NAME", "plan", "10", "2")
	has(t, first(mustRun(t, 0, "view", run, "plan", "--json")), `"version": 2`, `"step": 2`)
	has(t, first(mustRun(t, 0, "view", run, "--json")), `"views"`)
	mustRun(t, 1, "view", run, "other")
	mustRun(t, 2, "view")
}
