package vectors

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
)

// A keyRow is an agent that makes calls with names.
type keyRow struct {
	// Branches are the names of the branches in which the calls are made, the outermost first. Each is the
	// first of its name.
	Branches []string `json:"branches,omitempty"`
	// Calls has for each call the sort of thing, the name and the key.
	Calls [][]string `json:"calls"`
	// Refused tells that the last call, which has no key, is refused because of its name: with the code of
	// a misuse, or as the error of the child that is not spawned.
	Refused string `json:"refused,omitempty"`
}

func TestKeyVectors(t *testing.T) {
	var rows []keyRow
	for _, calls := range slices.Concat(keyCalls, refusedCalls()) {
		synctest.Test(t, func(t *testing.T) { rows = append(rows, keysOf(t, nil, calls)) })
	}
	for _, row := range branchCalls {
		synctest.Test(t, func(t *testing.T) { rows = append(rows, keysOf(t, row.branches, row.calls)) })
	}
	var b bytes.Buffer
	for n, row := range rows {
		before := "["
		if n > 0 {
			before = ","
		}
		fmt.Fprintf(&b, "%s\n %s", before, ascii(marshal(t, row)))
	}
	b.WriteString("\n]\n")
	check(t, "keys.json", b.Bytes())
}

// sorts are all things that have a name.
var sorts = []string{"step", "child", "map", "parallel", "saga", "signal", "approval", "callback", "time", "uuid"}

// everySort returns calls with one name, for each sort of thing.
func everySort(name string) (calls [][2]string) {
	for _, sort := range sorts {
		calls = append(calls, [2]string{sort, name})
	}
	return calls
}

var keyCalls = [][][2]string{
	{{"step", "a"}, {"step", "b"}, {"step", "a"}, {"step", "a"}, {"step", "b"}},
	everySort("go"),
	append(everySort("go"), everySort("go")...),
	{{"step", "a#1"}, {"step", "a"}, {"step", "a#1"}, {"step", "a"}},
	{{"step", "a/0"}, {"parallel", "a"}, {"step", "a/0"}},
	{{"parallel", "f"}, {"step", "f"}, {"parallel", "f"}},
	{{"child", "k"}, {"map", "k"}, {"child", "k"}, {"map", "k"}},
	{{"signal", "a:b"}, {"signal", "a"}, {"signal", "a:b"}},
	{{"step", "with space"}, {"step", "a:b"}, {"step", "日本"}, {"step", "é"}, {"step", "a.b@c+d-e"}},
	{{"step", strings.Repeat("x", 170)}, {"step", strings.Repeat("é", 85)}},
	{{"step", "A"}, {"step", "a"}, {"step", "A"}},
	{{"step", "1"}, {"step", "１"}, {"step", "1 2"}},
}

// branchCalls are calls in branches.
var branchCalls = []struct {
	branches []string
	calls    [][2]string
}{
	{[]string{"left"}, append(everySort("go"), everySort("go")...)},
	{[]string{"left", "deep"}, everySort("go")},
	{[]string{"a b", "日本"}, [][2]string{{"step", "a//b"}, {"step", "left"}, {"step", "a//b"}}},
	{[]string{"go"}, [][2]string{{"step", "go"}, {"step", "go"}}},
	{[]string{strings.Repeat("x", 80)}, [][2]string{{"step", strings.Repeat("x", 80)}}},
	{[]string{strings.Repeat("x", 100)}, [][2]string{{"step", strings.Repeat("x", 100)}}},
}

// refusedCalls returns calls of which the last one has a name that is none.
func refusedCalls() (all [][][2]string) {
	for _, name := range []string{"", "_a", strings.Repeat("x", 171), strings.Repeat("é", 85) + "x", "a\nb", "a\x7fb",
		" a", "a ", "#a", "a..b", "left#1//a", "a#1//", "a b#12//#", "a\"b", "a<b", "a%b", "a\\b", "e\u0301", "😀"} {
		all = append(all, [][2]string{{"step", "a"}, {"step", name}})
	}
	for _, sort := range sorts {
		all = append(all, [][2]string{{sort, "_a"}})
	}
	return all
}

// keysOf makes the calls in one execution, within branches, and takes their keys from its commits.
func keysOf(t *testing.T, branches []string, calls [][2]string) (row keyRow) {
	t.Helper()
	row.Branches = branches
	of := &story{name: fmt.Sprint(calls), asked: func(s *server) { s.endOldest(1) }}
	call := func(ctx *agent.Context) error {
		for _, call := range calls {
			if err := callNamed(ctx, call[0], call[1]); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range slices.Backward(branches) {
		inside := call
		call = func(ctx *agent.Context) error { return agent.Go(ctx, name, inside).Join(ctx) }
	}
	of.agent = func(ctx *agent.Context, _ execution) (any, error) { return nil, call(ctx) }
	s := newServer(t, of)
	for _, call := range calls {
		if call[0] == "signal" {
			s.signal(call[1], `null`)
		}
	}
	commits := s.execute(1, 10)
	keys := map[string][]string{}
	for n := range commits {
		addKeys(t, keys, &commits[n])
	}
	switch out := commits[len(commits)-1].Outcome; {
	case out.Error == nil:
	case out.Defect:
		row.Refused = string(out.Error.Code)
	default:
		row.Refused = "error"
	}
	for n, call := range calls {
		sort, name := call[0], call[1]
		if n == len(calls)-1 && row.Refused != "" {
			row.Calls = append(row.Calls, []string{sort, name})
			break
		}
		if len(keys[sort]) == 0 {
			t.Fatalf("%v: the commits have no key for call %d", calls, n+1)
		}
		row.Calls = append(row.Calls, []string{sort, name, keys[sort][0]})
		keys[sort] = keys[sort][1:]
	}
	return row
}

// callNamed makes a call, and has its key committed before it returns.
func callNamed(ctx *agent.Context, sort, name string) (err error) {
	null := func(context.Context) (any, error) { return nil, nil }
	switch sort {
	case "step":
		_, err = agent.Step(ctx, name, null)
	case "child":
		child := agent.Spawn[any](ctx, name, nil)
		if child.Key() == "" {
			_, err = child.Join(ctx)
		}
		child.ID()
	case "map":
		_, err = agent.Map[any](ctx, name, []int{1})
	case "parallel":
		_, err = agent.Parallel(ctx, name, []int{1}, func(context.Context, int) (any, error) { return nil, nil })
	case "saga":
		err = agent.Saga(ctx, name, func() error { return nil })
	case "signal":
		_, err = agent.Signal[any](ctx, name, time.Hour)
	case "approval":
		_, err = agent.OnApproval(ctx, agent.Approval{Name: name, Title: "?", Action: 1}).Withdraw(ctx)
	case "callback":
		_, err = agent.Callback[any](ctx, name, time.Hour).Withdraw(ctx)
	case "time":
		agent.Now(ctx, name)
	case "uuid":
		agent.UUID(ctx, name)
	}
	return err
}

// addKeys adds the keys that a commit has for the first time, by the sort of thing.
func addKeys(t *testing.T, keys map[string][]string, c *commit) {
	add := func(sort, key string) { keys[sort] = append(keys[sort], key) }
	for _, w := range c.Waits {
		add(string(w.Type), w.ID)
	}
	for _, e := range c.Journal {
		switch {
		case strings.HasPrefix(e.Key, "_saga:"):
			add("saga", e.Key)
		case strings.HasPrefix(e.Key, "_frame:"):
			addKeysOfFrame(t, add, e.Value)
		case strings.HasPrefix(e.Key, "_"):
		case strings.LastIndexByte(e.Key, '/') > strings.LastIndexByte(e.Key, '#'):
			add("parallel", e.Key)
		default:
			add("step", e.Key)
		}
	}
}

// addKeysOfFrame adds the keys in a frame. A frame of these agents has at most one of each sort.
func addKeysOfFrame(t *testing.T, add func(sort, key string), value json.RawMessage) {
	var f struct {
		In []struct {
			Type string `json:"type"`
			Wait string `json:"wait"`
		} `json:"in"`
		Spawned map[string]string `json:"spawned"`
		Mapped  map[string]any    `json:"mapped"`
		Now     map[string]int64  `json:"now"`
		UUID    map[string]string `json:"uuid"`
	}
	if err := json.Unmarshal(value, &f); err != nil {
		t.Fatal(err)
	}
	for _, i := range f.In {
		if i.Type == perdure.ItemSignal {
			add("signal", i.Wait)
		}
	}
	for key := range f.Spawned {
		add("child", key)
	}
	for key := range f.Mapped {
		add("map", key)
	}
	for key := range f.Now {
		add("time", key)
	}
	for key := range f.UUID {
		add("uuid", key)
	}
}
