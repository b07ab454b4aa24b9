package client_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/internal/wire/session"
)

// An older server refuses a field that it does not know. A poll goes on without one that is dispensable, and
// does not ask again each time.
func TestDispensableFieldIsLeftOutForOlderServer(t *testing.T) {
	var bodies []string
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in map[string]json.RawMessage
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		names := make([]string, 0, len(in))
		for name := range in {
			names = append(names, name)
		}
		slices.Sort(names)
		bodies = append(bodies, strings.Join(names, " "))
		for _, unknown := range []string{"release", "build"} {
			if _, ok := in[unknown]; ok && (unknown == "release" || string(in["build"]) == `"refuse"`) {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(http.StatusBadRequest)
				p := api.NewProblem(perdure.CodeInvalid, unknown+": is no field of this call", unknown)
				json.NewEncoder(w).Encode(p)
				return
			}
		}
		w.Write([]byte(`{"runs":[]}`))
	}))
	defer old.Close()
	c := client.New(old.URL, "key", client.Options{Retries: -1})
	defer c.Close()
	for range 2 {
		if _, err := session.Of(c).Poll(t.Context(), "w", api.Poll{Slots: 1, Release: "9.9.9", Wait: 1}); err != nil {
			t.Fatalf("poll of an older server: %v, want no error", err)
		}
	}
	if want := []string{"release slots wait", "slots wait", "slots wait"}; !slices.Equal(bodies, want) {
		t.Errorf("fields of the requests = %q, want %q", bodies, want)
	}
	_, err := session.Of(c).Poll(t.Context(), "w", api.Poll{Slots: 1, Build: "refuse"})
	if client.CodeOf(err) != perdure.CodeInvalid {
		t.Errorf("a poll with a field that is not dispensable = %v, want the refusal", err)
	}
}
