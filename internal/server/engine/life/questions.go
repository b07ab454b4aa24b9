package life

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
)

// Questions from below.
//
// A caller follows the log of one run, and the run that asks a person may be far below it. Its root's log
// therefore has a line when an approval is opened and one when it is over, in the transaction that does
// so. A commit's questions are told together, so that a commit of a thousand is one event of the root.
//
// A root that has ended writes no more lines. The runs of a continuation have the same root, so that their
// questions are told to the continuation: the run at the top of their parents.

// maxQuestionSteps bounds the parents that are read to find the top of a continuation. A run that is
// deeper below it is found by the list of approvals alone.
const maxQuestionSteps = 16

// questions has what an operation is going to tell, while it holds it back.
var questions = kernel.NewScratch[struct {
	holding int
	noted   []notedQuestion
}]()

// A notedQuestion is a question, or its end, that the log of a run is going to tell.
type notedQuestion struct {
	tenant perdure.TenantID
	run    perdure.RunID
	about  perdure.Question
}

// noteQuestion has the root of a run told that the run asks, or that its question is over. An approval
// without an id is none: the wait is of another type.
func noteQuestion(tx *kernel.Tx, r *perdure.Run, a *perdure.Approval) error {
	if a.ID == "" {
		return nil
	}
	top, ok, err := listenerAbove(tx, r)
	if err != nil || !ok {
		return err
	}
	s := questions.Of(tx)
	s.noted = append(s.noted, notedQuestion{top.Tenant, top.ID, perdure.Question{RunID: a.RunID, Kind: a.Kind,
		WaitID: a.WaitID, ApprovalID: a.ID, Title: a.Title, Approvers: a.Approvers, State: a.State}})
	return tellQuestions(tx)
}

// tellQuestions writes what was noted, unless somebody holds it back.
func tellQuestions(tx *kernel.Tx) error {
	s := questions.Of(tx)
	if s.holding > 0 {
		return nil
	}
	noted := s.noted
	s.noted = nil
	for len(noted) > 0 {
		first, rest := noted[0], []notedQuestion(nil)
		var asked, over []perdure.Question
		for _, n := range noted {
			switch {
			case n.run != first.run || n.tenant != first.tenant:
				rest = append(rest, n)
			case n.about.State == perdure.ApprovalOpen:
				asked = append(asked, n.about)
			default:
				over = append(over, n.about)
			}
		}
		noted = rest
		top, ok, err := tx.DB.Runs.Get(first.tenant, first.run)
		if err == nil && ok && top.State.Live() {
			err = tx.Apply(&top, perdure.QuestionsBelow{Asked: asked, Answered: over})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// questionsTogether does something with a run that may open or end many questions, and tells of them in
// one event for each log. Afterwards r is the newest version of the run.
func questionsTogether(tx *kernel.Tx, r *perdure.Run, do func() error) error {
	s := questions.Of(tx)
	s.holding++
	err := do()
	if s.holding--; s.holding > 0 || len(s.noted) == 0 {
		return err
	}
	if err != nil {
		s.noted = nil // the operation is refused
		return err
	}
	if err = tellQuestions(tx); err == nil {
		*r, err = tx.Run(r.Tenant, r.ID)
	}
	return err
}

// listenerAbove gives the live run whose log tells of the questions of a run: the root, or else the
// continuation that the run is below. ok is false if there is none.
func listenerAbove(tx *kernel.Tx, r *perdure.Run) (top perdure.Run, ok bool, err error) {
	if r.RootID == "" || r.RootID == r.ID {
		return top, false, nil
	}
	top, ok, err = tx.DB.Runs.Get(r.Tenant, r.RootID)
	if err != nil || ok && top.State.Live() {
		return top, ok, err
	}
	id := r.ParentID
	for range maxQuestionSteps {
		if id == "" || id == r.RootID {
			return top, false, nil
		}
		if top, ok, err = tx.DB.Runs.Get(r.Tenant, id); err != nil || !ok {
			return top, false, err
		}
		if id = top.ParentID; id == "" {
			return top, top.State.Live(), nil
		}
	}
	return top, false, nil
}
