package journal

// Named are values that an agent was given under a name, such as the times of Now. A value has a key:
// the name, and the number of its use. It is the same in every execution.
//
// Frames of the old form have values without names, in the order in which they were given. They are
// given out first, in that order, whatever the names. Uses are counted on meanwhile, so a value of the
// new form that was given afterwards is found under its key.
type Named[T any] struct {
	byKey map[string]T
	old   []T
}

// Read adds a value of the journal.
func (n *Named[T]) Read(key string, v T) {
	if n.byKey == nil {
		n.byKey = map[string]T{}
	}
	n.byKey[key] = v
}

// ReadOld adds a value of a frame of the old form.
func (n *Named[T]) ReadOld(v T) { n.old = append(n.old, v) }

// Get returns the value of a key, and whether there is one.
func (n *Named[T]) Get(key string) (v T, ok bool) {
	if len(n.old) > 0 {
		v, n.old = n.old[0], n.old[1:]
		return v, true
	}
	v, ok = n.byKey[key]
	return v, ok
}

// Open tells whether values of the old form are left.
func (n *Named[T]) Open() bool { return len(n.old) > 0 }
