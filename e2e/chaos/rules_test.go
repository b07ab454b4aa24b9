package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
)

// A History is everything that was seen from outside, and what the store has at the end.
type History struct {
	Ops    []Op
	Stored *Stored
	Clocks *clocks
	Policy policy
	// Up are the times in which at least one node could do its work.
	Up []span
	// Checked counts what the rules looked at.
	Checked struct{ Leases, Acknowledged, Frames, Effects, Ends int }

	byRun map[string][]Op
}

// A policy has the settings of the fleet that rules go by.
type policy struct{ lease, gapAfter, gapSpare time.Duration }

// A violation is a broken promise, with the part of the history that shows it.
type violation struct {
	Rule, Run, Text string
	Ops             []Op
}

func (v violation) String() string {
	s := fmt.Sprintf("%s: run %s: %s", v.Rule, v.Run, v.Text)
	for _, o := range v.Ops {
		s += "\n  " + o.String()
	}
	return s
}

// rules are what a history has to keep.
var rules = []struct {
	name  string
	check func(*History) []violation
}{
	{"acknowledged", (*History).acknowledged},
	{"phantoms", (*History).phantoms},
	{"log", (*History).logs},
	{"streams", (*History).streams},
	{"deadlines", (*History).deadlines},
	{"thefts", (*History).thefts},
	{"effects", (*History).effects},
	{"leases", (*History).leases},
}

// check applies all rules.
func (h *History) check() (found []violation) {
	slices.SortStableFunc(h.Ops, func(a, b Op) int { return cmp.Compare(a.Begin, b.Begin) })
	h.byRun = make(map[string][]Op)
	for _, o := range h.Ops {
		if o.Run != "" {
			h.byRun[o.Run] = append(h.byRun[o.Run], o)
		}
	}
	for _, r := range rules {
		for _, v := range r.check(h) {
			v.Rule = cmp.Or(v.Rule, r.name)
			found = append(found, v)
		}
	}
	return found
}

func (h *History) runs() []string { return slices.Sorted(maps.Keys(h.Stored.Runs)) }

// acknowledged checks that everything that was acknowledged is in the store: runs, signals, steps, results.
func (h *History) acknowledged() (found []violation) {
	byKey := make(map[string]string)
	bad := func(o Op, format string, args ...any) {
		found = append(found, violation{Run: o.Run, Text: fmt.Sprintf(format, args...), Ops: []Op{o}})
	}
	for _, o := range h.Ops {
		if o.Answer != ok {
			continue
		}
		if slices.Contains([]call{submit, signal, cancel, commit}, o.Call) {
			h.Checked.Acknowledged++
		}
		r := h.Stored.Runs[o.Run]
		if r == nil {
			if o.Run != "" && slices.Contains([]call{submit, signal, cancel, commit, grant, read}, o.Call) {
				bad(o, "it was acknowledged, and is not in the store")
			}
			continue
		}
		switch o.Call {
		case submit:
			if before := cmp.Or(byKey[o.Key], o.Run); before != o.Run {
				bad(o, "key %s was acknowledged as run %s before", o.Key, before)
			}
			byKey[o.Key] = o.Run
			if r.Key != o.Key {
				bad(o, "key %s was acknowledged as this run, which has key %q", o.Key, r.Key)
			}
		case signal:
			if n := len(r.Signals[o.Value]); n != 1 {
				bad(o, "signal %s was acknowledged, and is in the inbox %d times", o.Value, n)
			}
		case cancel:
			if r.State != string(perdure.Cancelled) && !r.Cancelled && !r.over(h, o) {
				bad(o, "the cancel request was acknowledged, and the store has none")
			}
		case commit:
			for _, key := range o.Keys {
				if !r.Journal[key] {
					bad(o, "step %s was acknowledged, and is not in the journal", key)
				}
			}
			completes := o.State == string(perdure.OutcomeComplete)
			if words := h.words(o.Run); completes && r.Kind == "loop" && r.Result != words {
				bad(o, "result %s, and the signals %s were acknowledged in this order", r.Result, words)
			}
			if completes && (r.State != string(perdure.Completed) || r.Result != o.Value) {
				bad(o, "result %s was acknowledged, and the run is %s with %s", o.Value, r.State, r.Result)
			}
		}
	}
	return found
}

// words are the signals of a run that were acknowledged, as its agent returns them.
func (h *History) words(run string) string {
	var words []string
	for _, o := range h.byRun[run] {
		if o.Call == signal && o.Answer == ok {
			words = append(words, strings.Trim(o.Value, `"`))
		}
	}
	return strconv.Quote(strings.Join(words, " "))
}

// over tells whether a run may have ended before an operation was answered.
func (r *StoredRun) over(h *History, o Op) bool {
	return len(r.Lines) > 0 && h.Clocks.mono(r.EndedAt) <= o.End+int64(clockSlack)
}

// phantoms checks that everything in the store was asked for: runs, children, results, steps, signals.
func (h *History) phantoms() (found []violation) {
	submitted, signals := make(map[string]bool), make(map[string]bool)
	steps, results, children := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, o := range h.Ops {
		switch o.Call {
		case submit:
			submitted[o.Key] = true
		case signal:
			signals[o.Run+" "+o.Value] = true
		case commit:
			for _, key := range o.Keys {
				steps[o.Run+" "+key] = true
			}
			for _, key := range o.Children {
				children[o.Run+" "+key] = true
			}
			if o.State == string(perdure.OutcomeComplete) {
				results[o.Run+" "+strconv.FormatInt(o.Epoch, 10)+" "+o.Value] = true
			}
		}
	}
	byKey := make(map[string]string)
	for _, id := range h.runs() {
		r := h.Stored.Runs[id]
		bad := func(format string, args ...any) {
			found = append(found, violation{Run: id, Text: fmt.Sprintf(format, args...), Ops: h.around(id, 0)})
		}
		switch {
		case r.Parent != "" && !children[r.Parent+" "+r.JournalKey]:
			bad("nobody spawned it: child %s of %s", r.JournalKey, r.Parent)
		case r.Parent == "" && !submitted[r.Key]:
			bad("nobody submitted it: key %q", r.Key)
		case r.Parent == "" && byKey[r.Key] != "":
			bad("key %s has another run, %s", r.Key, byKey[r.Key])
		}
		if r.Parent == "" {
			byKey[r.Key] = id
		}
		if r.State == string(perdure.Completed) && !results[id+" "+strconv.FormatInt(r.endEpoch(), 10)+" "+r.Result] {
			bad("result %s was sent by nobody under epoch %d", r.Result, r.endEpoch())
		}
		for key := range r.Journal {
			if !steps[id+" "+key] {
				bad("step %s was recorded by nobody", key)
			}
		}
		for value, rows := range r.Signals {
			if !signals[id+" "+value] {
				bad("signal %s was sent by nobody", value)
			}
			if len(rows) != 1 {
				bad("signal %s is in the inbox %d times", value, len(rows))
			}
		}
	}
	return found
}

// endEpoch is the epoch of a run's last line that ends it.
func (r *StoredRun) endEpoch() int64 {
	for _, l := range r.Lines {
		if terminal(l.Type) {
			return l.Epoch
		}
	}
	return 0
}

// writtenByHolder are the types of lines that only the holder of a run causes. A worker's own lines begin
// with x:.
func writtenByHolder(l Line) bool {
	return l.Type == perdure.LineSuspended || l.Type == perdure.LineCompleted || strings.HasPrefix(string(l.Type), "x:")
}

// logs checks each run's log by itself: its lines have no gap, no epoch is granted twice, only the holder
// writes, nothing follows the end, and there is an end.
func (h *History) logs() (found []violation) {
	for _, id := range h.runs() {
		r := h.Stored.Runs[id]
		bad := func(l Line, format string, args ...any) {
			which := fmt.Sprintf("line %d (%s, epoch %d): ", l.Seq, l.Type, l.Epoch)
			found = append(found, violation{Run: id, Text: which + fmt.Sprintf(format, args...),
				Ops: h.around(id, h.Clocks.mono(l.At))})
		}
		holder, granted, ended := int64(0), int64(0), false
		for i, l := range r.Lines {
			if l.Seq != int64(i+1) {
				bad(l, "want line %d", i+1)
				break
			}
			if ended && l.Type != perdure.LineLateResult && l.Type != perdure.LineDeadLettered &&
				!strings.HasPrefix(string(l.Type), "worker:") && l.Type != perdure.LineWaitClosed {
				bad(l, "it follows the end of the run")
			}
			if writtenByHolder(l) && l.Epoch != holder {
				bad(l, "a write of an epoch that did not hold the run was accepted; its holder had %d", holder)
			}
			switch {
			case l.Type == perdure.LineDispatched:
				if l.Epoch <= granted {
					bad(l, "the epoch was granted before")
				}
				holder, granted = l.Epoch, l.Epoch
			case l.Type == perdure.LineReclaimed, l.Type == perdure.LineSuspended, l.Type == perdure.LineRetrying:
				holder = 0
			case terminal(l.Type):
				ended = true
			}
		}
		if !ended && len(r.Lines) > 0 {
			bad(r.Lines[len(r.Lines)-1], "the run has not ended: it is %s", r.State)
		}
	}
	return found
}

// streams checks what followers got: each line once, in order, without a gap, as it is in the log, to the end.
func (h *History) streams() (found []violation) {
	last, ends := make(map[string]Op), make(map[string]bool)
	text := make(map[string]Op)
	for _, o := range h.Ops {
		if o.Call != frame {
			continue
		}
		h.Checked.Frames++
		before := last[o.Key]
		bad := func(format string, args ...any) {
			found = append(found, violation{Run: o.Run, Text: fmt.Sprintf(format, args...), Ops: []Op{before, o}})
		}
		switch {
		case o.Seq == before.Seq+1:
		case o.Seq <= before.Seq:
			bad("follower %s got line %d after line %d: a repetition", o.Key, o.Seq, before.Seq)
		default:
			bad("follower %s got line %d after line %d: a gap", o.Key, o.Seq, before.Seq)
		}
		last[o.Key] = o
		at := fmt.Sprint(o.Run, " ", o.Seq)
		if other, seen := text[at]; seen && other.Value != o.Value {
			bad("line %d is another one for follower %s: %s, and %s", o.Seq, other.Key, o.Value, other.Value)
		}
		text[at] = o
		r := h.Stored.Runs[o.Run]
		switch {
		case r == nil || o.Seq > int64(len(r.Lines)):
			bad("line %d is not in the log", o.Seq)
		case string(r.Lines[o.Seq-1].Type) != o.State:
			bad("line %d is %s in the log", o.Seq, r.Lines[o.Seq-1].Type)
		default:
			ends[o.Key] = ends[o.Key] || terminal(r.Lines[o.Seq-1].Type)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(last)) {
		if !ends[key] {
			found = append(found, violation{Run: last[key].Run, Ops: []Op{last[key]},
				Text: fmt.Sprintf("the stream of follower %s did not go on to the run's end", key)})
		}
	}
	return found
}

// patience is how much later than its deadline a run ends at most, while a node can do its work.
const patience = 2 * time.Second

// deadlines checks that runs end by their deadline, by the store's instants: not before it as timed out, and
// not more than two seconds after it. Only time counts in which a node could do its work. After a gap, in
// which no node could, a run that was leased has gap_spare longer (SPEC §6).
func (h *History) deadlines() (found []violation) {
	for _, id := range h.runs() {
		r := h.Stored.Runs[id]
		for _, l := range r.Lines {
			if !terminal(l.Type) {
				continue
			}
			h.Checked.Ends++
			byDeadline := l.Type == perdure.LineTimedOut && strings.Contains(l.Data, string(perdure.CodeDeadline))
			if byDeadline && l.At < r.DeadlineAt {
				found = append(found, violation{Run: id, Text: fmt.Sprintf("it timed out %d µs before its deadline",
					r.DeadlineAt-l.At), Ops: h.around(id, h.Clocks.mono(l.At))})
			}
			if l.At <= r.DeadlineAt {
				break
			}
			deadline, end := h.Clocks.mono(r.DeadlineAt), h.Clocks.mono(l.At)
			limit := patience
			if h.gapBefore(end) {
				limit += h.Policy.gapSpare
			}
			if late := h.upBetween(deadline, end); late > limit {
				found = append(found, violation{Run: id, Text: fmt.Sprintf("it ended %s after its deadline, %s of it "+
					"while a node could do its work; want at most %s", time.Duration(end-deadline), late, limit),
					Ops: h.around(id, deadline)})
			}
			break
		}
	}
	return found
}

// upBetween is for how long a node could do its work between two instants.
func (h *History) upBetween(from, to int64) (up time.Duration) {
	for _, s := range h.Up {
		if s := (span{max(s.from, from), min(s.to, to)}); s.to > s.from {
			up += s.length()
		}
	}
	return up
}

// gapBefore tells whether there may have been a gap shortly before an instant. The watchdog sees one where no node
// swept for gap_after; it writes its row a quarter of that late.
func (h *History) gapBefore(at int64) bool {
	from := at - int64(patience+h.Policy.gapSpare+2*h.Policy.gapAfter)
	end := from
	for _, s := range h.Up {
		if s.to < from || s.from > at {
			continue
		}
		if time.Duration(s.from-end) > h.Policy.gapAfter*3/4 {
			return true
		}
		end = max(end, s.to)
	}
	return time.Duration(at-end) > h.Policy.gapAfter*3/4
}

// thefts checks that no lease is taken away early. A sign of life that was acknowledged renews the lease from
// when it was sent, at the earliest.
func (h *History) thefts() (found []violation) {
	type holder struct {
		run   string
		epoch int64
	}
	alive, first := make(map[holder]Op), make(map[string]int64)
	for _, o := range h.Ops {
		if o.Call == commit {
			// A commit that is repeated gets its first answer, and is no new sign of life.
			if at := o.Run + " " + o.Key; first[at] == 0 {
				first[at] = o.Begin
			} else {
				o.Begin = first[at]
			}
		}
		if o.Answer == ok && (o.Call == beat || o.Call == begin || o.Call == commit) {
			if who := (holder{o.Run, o.Epoch}); o.Begin >= alive[who].Begin {
				alive[who] = o
			}
		}
	}
	for _, id := range h.runs() {
		before := int64(0)
		for _, l := range h.Stored.Runs[id].Lines {
			if l.Type == perdure.LineReclaimed && strings.Contains(l.Data, `"lease_lost"`) {
				o, heard := alive[holder{id, before}]
				early := o.Begin + int64(h.Policy.lease-clockSlack) - h.Clocks.mono(l.At)
				if heard && early > 0 {
					found = append(found, violation{Run: id,
						Text: fmt.Sprintf("the lease of epoch %d was taken away %s before its end (line %d)", before,
							time.Duration(early), l.Seq),
						Ops: append([]Op{o}, h.around(id, h.Clocks.mono(l.At))...)})
				}
			}
			before = l.Epoch
		}
	}
	return found
}

// effects checks the outside world. A run with one attempt is executed at most once. An effect happens once per
// key, and a step keeps its key. A step that is recorded is not executed again by the same holder or a later
// one; one whose lease was lost, and that does not know yet, may execute it still.
func (h *History) effects() (found []violation) {
	executed, applied, keyOf := make(map[string]Op), make(map[string]Op), make(map[string]Op)
	recorded := make(map[string]Op) // by run and journal key: the commit that was acknowledged first
	for _, o := range h.Ops {
		if o.Call == commit && o.Answer == ok {
			for _, key := range o.Keys {
				if before, known := recorded[o.Run+" "+key]; !known || o.End < before.End {
					recorded[o.Run+" "+key] = o
				}
			}
		}
	}
	for _, o := range h.Ops {
		bad := func(before Op, format string, args ...any) {
			found = append(found, violation{Run: o.Run, Text: fmt.Sprintf(format, args...), Ops: []Op{before, o}})
		}
		switch o.Call {
		case execute:
			if before, again := executed[o.Run]; again && o.Once {
				bad(before, "it has one attempt, and was executed twice")
			}
			executed[o.Run] = o
		case effect:
			h.Checked.Effects++
			if before, again := applied[o.Key]; again && o.Applied {
				bad(before, "the effect of key %s happened twice", o.Key)
			}
			if o.Applied {
				applied[o.Key] = o
			}
			step := o.Run + " " + o.State
			if before, known := keyOf[step]; known && before.Key != o.Key {
				bad(before, "step %s has two keys, %s and %s", o.State, before.Key, o.Key)
			}
			keyOf[step] = o
			if c, known := recorded[step]; known && c.End < o.Begin && o.Epoch >= c.Epoch {
				bad(c, "step %s was recorded under epoch %d, and executed again under epoch %d", o.State, c.Epoch,
					o.Epoch)
			}
		}
	}
	return found
}

// window is how many operations of a run a report has.
const window = 12

// around are the operations of a run that are closest to an instant; zero is the last one.
func (h *History) around(run string, at int64) []Op {
	ops := slices.DeleteFunc(slices.Clone(h.byRun[run]), func(o Op) bool { return o.Call == frame || o.Call == read })
	if at == 0 && len(ops) > 0 {
		at = ops[len(ops)-1].Begin
	}
	i, _ := slices.BinarySearchFunc(ops, at, func(o Op, at int64) int { return cmp.Compare(o.Begin, at) })
	return ops[max(0, i-window*2/3):min(len(ops), i+window/3)]
}
