package life

// Weights estimate the rows that an operation reads or writes, and its bytes. The store forms
// batches by them, so that one heavy operation does not hold up many light ones. An operation
// without a Weight counts as a few rows.

// Weight counts a commit's entries. A child that is cancelled may end, and an end writes more rows. A
// wait for an approval writes two more rows, and one of them has the action.
func (op *Commit) Weight() (rows, bytes int) {
	c := &op.Commit
	rows, bytes = 4+2*c.Entries()+4*len(c.Cancel), 1<<10+c.Size()
	for i := range c.Waits {
		if a := c.Waits[i].Approval; a != nil {
			rows, bytes = rows+2, bytes+len(a.Action)
		}
	}
	return rows, bytes
}

// Slow tells of a commit that asks for many approvals: their actions make it take as long as hundreds of
// other calls. Commits without them stay in the lane of heartbeats, where they can't conflict with those.
func (op *Commit) Slow() bool {
	n := 0
	for i := range op.Commit.Waits {
		if op.Commit.Waits[i].Approval != nil {
			n++
		}
	}
	return n > manyApprovals
}

// manyApprovals is the number of approvals above which a commit is slow.
const manyApprovals = 100

// Weight counts a submission's messages, and its metadata, which is indexed.
func (op *Submit) Weight() (rows, bytes int) {
	return 5 + len(op.Submission.Messages) + len(op.Submission.Metadata), 1<<10 + op.Submission.Size()
}

// Weight counts a new thread, a new run and the message.
func (op *Chat) Weight() (rows, bytes int) {
	return 12, 2<<10 + len(op.Message.Content) + len(op.Message.Metadata)
}

// Weight counts the runs of a group.
func (op *CreateGroup) Weight() (rows, bytes int) {
	return 4 + 3*len(op.RunIDs), 1<<10 + 256*len(op.RunIDs)
}

// Weight counts the signal's data.
func (op *Signal) Weight() (rows, bytes int) { return 4, 1<<10 + len(op.Data) }

// Weight counts the answer.
func (op *Callback) Weight() (rows, bytes int) { return 4, 1<<10 + len(op.Result) }

// Weight counts the chunk's bytes.
func (op *AddChunk) Weight() (rows, bytes int) { return 2, 1<<10 + len(op.Data) }

// Weight counts the metadata.
func (op *ChangeThread) Weight() (rows, bytes int) { return 2, 1<<10 + 2*len(op.Metadata) }

// Weight counts the metadata, or a copy as large as it may be.
func (op *CreateThread) Weight() (rows, bytes int) {
	if op.Of != "" {
		return 2 * maxCopied, maxCopied << 10
	}
	return 2, 1<<10 + len(op.Metadata)
}
