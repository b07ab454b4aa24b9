package reads

import (
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/store"
)

// The results of late work are in full in their list: 16 of 1 MiB are more than one answer holds.
func TestLateResultsArePaged(t *testing.T) {
	var all []perdure.LateResult
	result := perdure.Value(`"` + strings.Repeat("x", 1<<20-2) + `"`)
	for i := range 16 {
		all = append(all, perdure.LateResult{Tenant: "a", N: i + 1, Result: result})
	}
	pages := func(limit int) (sizes []int) {
		for after := 0; ; {
			list, next, err := latePage(new(store.View), all, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			if sizes = append(sizes, len(list)); next == 0 {
				return sizes
			}
			after = next
		}
	}
	if got, want := pages(1000), []int{7, 7, 2}; !slices.Equal(got, want) {
		t.Errorf("pages of 16 late results of 1 MiB: %v, want %v", got, want)
	}
	if got, want := pages(5), []int{5, 5, 5, 1}; !slices.Equal(got, want) {
		t.Errorf("pages of 16 late results, 5 a page: %v, want %v", got, want)
	}
}
