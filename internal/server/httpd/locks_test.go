package httpd

import "testing"

// Without another session nothing is locked. The list of locks is for the platform.
func TestNothingIsLocked(t *testing.T) {
	w := newWorld(t, setup{})
	for name, list := range w.as(w.admin).get("/api/admin/locks").is(200) {
		if some, ok := list.([]any); ok && len(some) > 0 {
			t.Errorf("%s = %v, want nothing", name, some)
		}
	}
	w.get("/api/admin/locks").refuses(403, "forbidden")
}
