package store

import (
	"errors"
	"iter"
)

// A statement is one change with its arguments.
type statement struct {
	text string
	args []any
	// want is the number of rows that it has to change. Another number means a conflict with
	// another writer. With anyNumber the number does not matter.
	want int64
}

// anyNumber is the want of a statement that may change any number of rows.
const anyNumber int64 = -1

// errConflict means that another writer changed a row between reading and writing it. The batch is
// decided again.
var errConflict = errors.New("store: somebody else was quicker")

// A pipeliner is a session that executes a whole transaction up to its commit in one round trip. It
// gives the number of rows that each statement has changed.
type pipeliner interface {
	ExecAll(iter.Seq2[string, []any]) ([]int64, error)
}

// inOrder gives the texts and arguments of statements.
func inOrder(list []statement) iter.Seq2[string, []any] {
	return func(yield func(string, []any) bool) {
		for _, st := range list {
			if !yield(st.text, st.args) {
				return
			}
		}
	}
}

// execAll begins a transaction and executes the statements in it. open tells whether the
// transaction is open afterwards.
func execAll(s Conn, list []statement) (open bool, err error) {
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
				return true, errConflict // the transaction is rolled back anyway
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
