package store

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/perdure/perdure"
)

// The column of a run under limits is what encoding/json writes, and a run that is read shares nothing that differs.
func TestLimitsOfRunsAreWrittenAsJSON(t *testing.T) {
	refs := []perdure.LimitRef{{Limit: "model"}, {Limit: "customer", Key: "a"}}
	uses := []*perdure.LimitUse{nil, {Names: []string{}}, {Names: []string{"model"}},
		{Names: []string{"model", "customer"}, Key: "a b", Units: 3}, {Names: []string{"<"}},
		{Names: []string{"x"}, Key: "ü\""}}
	positions := []*perdure.Limited{nil, {}, {Held: true}, {Refs: refs, Held: true},
		{Refs: refs, OfferedAt: 1, Units: []int{1, 2}}, {Refs: refs[:1], OfferedAt: 1e15 + 1, Units: []int{1}},
		{Refs: refs[:1], OfferedAt: 1e15 + 2, Units: []int{1}, Since: 7}, {At: refs[1], Turn: "k\\", Since: 9},
		{At: refs[0], Turn: "k", Since: 9},
		{Refs: refs[:1], Held: true, Steps: []perdure.StepSlot{{Step: "s#1", Refs: refs[1:]}}}}
	for range 2 { // the second time what was read is remembered
		for _, u := range uses {
			for _, l := range positions {
				r := perdure.Run{Limited: l, Options: perdure.Options{Limits: u}}
				x := rest{Limited: l}
				if u != nil {
					x.Options = &restOptions{Options: r.Options}
				}
				want := ""
				if x != (rest{}) {
					b, err := json.Marshal(x)
					if err != nil {
						t.Fatal(err)
					}
					want = string(b)
				}
				text := packRest(&r)
				if text != want {
					t.Errorf("the column = %s, want %s", text, want)
				}
				var got perdure.Run
				if err := (restColumn{&got}).Scan(text); err != nil || got.Damage != nil {
					t.Fatalf("%s: %v, damage %v", text, err, got.Damage)
				}
				var plain rest
				if text != "" {
					if err := json.Unmarshal([]byte(text), &plain); err != nil {
						t.Fatal(err)
					}
				}
				if !reflect.DeepEqual(got.Limited, plain.Limited) {
					t.Errorf("%s is read as the position %+v, want %+v", text, got.Limited, plain.Limited)
				}
				if u != nil && !reflect.DeepEqual(got.Options.Limits, plain.Options.Limits) {
					t.Errorf("%s is read as under %+v, want %+v", text, got.Options.Limits, plain.Options.Limits)
				}
			}
		}
	}
}
