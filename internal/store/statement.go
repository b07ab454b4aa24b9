package store

import "iter"

// A statement is one change, with its arguments.
type statement struct {
	text string
	args []any
	// want is how many rows it has to change; another number means that somebody else was quicker. anyNumber
	// means that it does not matter.
	want int64
}

const anyNumber int64 = -1

// A pipeliner is a session that takes all statements of a transaction at once, from its beginning to before its
// commit, and says how many rows each has changed.
type pipeliner interface {
	ExecAll(iter.Seq2[string, []any]) ([]int64, error)
}

// inOrder gives the texts of statements and their arguments.
func inOrder(list []statement) iter.Seq2[string, []any] {
	return func(yield func(string, []any) bool) {
		for _, st := range list {
			if !yield(st.text, st.args) {
				return
			}
		}
	}
}

// execAll begins a transaction and executes the statements in it. open tells whether one is open afterwards.
func execAll(s Session, list []statement) (open bool, err error) {
	var counts []int64
	if p, ok := s.(pipeliner); ok {
		if counts, err = p.ExecAll(inOrder(list)); err != nil {
			return true, err
		}
	} else {
		if err := s.Begin(); err != nil {
			return false, err
		}
		for _, st := range list {
			n, err := s.Exec(st.text, st.args)
			if err != nil {
				return true, err
			}
			if st.want != anyNumber && n != st.want {
				return true, errConflict // the rest would be written in vain
			}
		}
		return true, nil
	}
	for i, st := range list {
		if st.want != anyNumber && counts[i] != st.want {
			return true, errConflict
		}
	}
	return true, nil
}
