package pairs

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/watchdog"
)

// No cell is empty, and at least two thirds of them are tried.
func TestEveryPairIsTriedOrCantMeet(t *testing.T) {
	cells, tried := 0, 0
	for a := range count {
		for b := a + 1; b < count; b++ {
			c := CellOf(Pair{a, b})
			cells++
			switch {
			case c.Tried():
				tried++
			case c.Why == "":
				t.Errorf("%s: nothing tries both, and nothing says why they can't meet", Pair{a, b})
			}
		}
	}
	if tried*3 < cells*2 {
		t.Errorf("%d of %d pairs are tried, want two thirds", tried, cells)
	}
}

// Refusals that the table names are codes of the product.
func TestRefusalsAreCodes(t *testing.T) {
	text, err := os.ReadFile("../../../errors.go")
	if err != nil {
		t.Fatal(err)
	}
	for p, c := range apart {
		if c.Code != "" && !strings.Contains(string(text), `= "`+c.Code+`"`) {
			t.Errorf("%s: %q is no code of errors.go", p, c.Code)
		}
	}
}

// The lists have pairs of features that exist, in the order of the table, each once.
func TestListsNameFeatures(t *testing.T) {
	for name, text := range map[string]string{"simulated.txt": simulatedText, "conformance.txt": conformedText} {
		seen := make(map[string]bool)
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if p := parse(line); len(p) != 1 || p[0].String() != line || seen[line] {
				t.Errorf("%s: %q is no pair, or stands there twice", name, line)
			}
			seen[line] = true
		}
		if len(seen) < 100 {
			t.Errorf("%s has %d lines: this test looks at too little", name, len(seen))
		}
	}
}

// A new feature fails this test until it has its row: every part of the product belongs to a feature or to none.
func TestEveryPartBelongsToAFeature(t *testing.T) {
	parts := map[string]map[string]bool{"event": {}, "rule": {}, "wait": {}, "field": {}, "route": {}}
	for _, row := range perdure.Transitions {
		parts["event"][row.On] = true
	}
	for _, r := range watchdog.Rules {
		parts["rule"][r.Name] = true
	}
	for _, x := range perdure.WaitTypes {
		parts["wait"][string(x)] = true
	}
	for f := range reflect.TypeFor[perdure.Submission]().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			parts["field"][name] = true
		}
	}
	text, err := os.ReadFile("../../server/httpd/routes.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"(GET|POST|PUT|PATCH|DELETE)", (v1\+)?"([^"]+)"`).
		FindAllStringSubmatch(string(text), -1) {
		if m[2] != "" {
			m[3] = "/api/v1" + m[3]
		}
		parts["route"][m[1]+" "+m[3]] = true
	}
	known := map[string]map[string]Feature{"event": events, "rule": rules, "wait": waits, "field": submission}
	for kind, names := range parts {
		if len(names) < 5 {
			t.Errorf("%d %ss: this test looks at too little", len(names), kind)
		}
		for name := range names {
			if kind == "route" {
				if !hasRoute(name) {
					t.Errorf("route %s belongs to no feature: say in surface.go to which", name)
				}
			} else if _, ok := known[kind][name]; !ok {
				t.Errorf("%s %s belongs to no feature: say in surface.go to which", kind, name)
			}
		}
		for name := range known[kind] {
			if !names[name] {
				t.Errorf("surface.go has the %s %s, which is not there any more", kind, name)
			}
		}
	}
}

// hasRoute tells whether a route is listed, or what is above it. A route that changes something needs a
// feature, or an entry of its own.
func hasRoute(route string) bool {
	method, path, _ := strings.Cut(route, " ")
	for at := path; at != ""; at = at[:max(0, strings.LastIndexByte(at, '/'))] {
		if f, ok := routes[at]; ok {
			return at == path || method == "GET" || f != none && !strings.HasSuffix(at, "{id}")
		}
	}
	return false
}

func TestHistoryNotesTheOrder(t *testing.T) {
	var h History
	if met := h.Observe(Of(Thread)); len(met) != 0 {
		t.Errorf("one feature alone: %v", met)
	}
	met := h.Observe(Of(Thread, Cancel))
	if len(met) != 1 || met[0] != (Pair{Thread, Cancel}) {
		t.Errorf("thread, then cancel: %v", met)
	}
	if met := h.Observe(Of(Thread, Cancel)); len(met) != 0 {
		t.Errorf("nothing new: %v", met)
	}
	h.Observe(Of(Cancel, Suspend))
	// A feature that was in force until the deadline meets it.
	met = h.Observe(Of(Deadline))
	if len(met) != 2 || met[0].Then != Deadline || met[1].Then != Deadline {
		t.Errorf("cancel and suspend, then the deadline: %v", met)
	}
	var both History
	if met := both.Observe(Of(Child, Webhook)); len(met) != 2 {
		t.Errorf("two at once count in both orders: %v", met)
	}
}
