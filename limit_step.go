package perdure

import (
	"fmt"
	"slices"
)

// Limits of steps: what a step takes before its function is called.
//
// A step of a leased run asks for slots, or for units of a rate, and gives the slots back with the commit that
// records it. A step that has to wait for longer suspends its run on a wait of the type limit. While the run is
// suspended it stands in the line of the limit, like a run that waits for its grant. When there is room the wait
// is satisfied, and the next grant of the run takes the slots for the step, beside those of the run itself.

// MaxStepSlots bounds the steps of a run that hold slots, or wait for them, at once.
const MaxStepSlots = 64

// A LimitTake is what a step takes of a limit.
type LimitTake struct {
	Name string `json:"name"`
	// Key is the key of a limit that has a count of its own for each key.
	Key string `json:"key,omitempty"`
	// Units is what the step takes of a rate. Zero: one.
	Units int `json:"units,omitempty"`
}

// Taken returns what the step takes of a rate.
func (t *LimitTake) Taken() int { return max(1, t.Units) }

// CheckTakes checks what a step takes.
func CheckTakes(field string, takes []LimitTake) error {
	if len(takes) == 0 || len(takes) > maxLimits {
		return Unprocessable(field, "names 1 to %d limits", maxLimits)
	}
	for i := range takes {
		t, at := &takes[i], fmt.Sprintf("%s[%d]", field, i)
		if err := CheckLimitName(at+".name", t.Name); err != nil {
			return err
		}
		if err := CheckLimitKey(at+".key", t.Key); err != nil {
			return err
		}
		if t.Units < 0 || t.Units > maxLimitCount {
			return Unprocessable(at+".units", "%d does not lie between 1 and %d", t.Units, maxLimitCount)
		}
		if slices.ContainsFunc(takes[:i], func(x LimitTake) bool { return x.Name == t.Name }) {
			return Unprocessable(at+".name", "%q is named twice", t.Name)
		}
	}
	return nil
}

// A StepSlot has the limits that count a step of a leased run.
type StepSlot struct {
	Step string     `json:"step"`
	Refs []LimitRef `json:"refs,omitempty"`
	// Try is the number of the call of the step's function that has taken units last.
	Try int `json:"try,omitempty"`
}

// A StepWant is a step that waits for its limits.
type StepWant struct {
	Wait   string      `json:"wait"`
	Step   string      `json:"step"`
	Limits []LimitTake `json:"limits"`
	// Due is set when the wait is satisfied: the next grant takes the slots.
	Due bool `json:"due,omitempty"`
}

// DueStep returns the step whose slots the next grant takes, or nil.
func (r *Run) DueStep() *StepWant {
	for i := range r.Wants {
		if r.Wants[i].Due {
			return &r.Wants[i]
		}
	}
	return nil
}

// SlotOf returns the slots of a step, or nil if it holds none.
func (r *Run) SlotOf(step string) *StepSlot {
	if r.Limited == nil {
		return nil
	}
	for i := range r.Limited.Steps {
		if s := &r.Limited.Steps[i]; s.Step == step {
			return s
		}
	}
	return nil
}

// wantEnded takes the end of a wait: its step is due if the wait is satisfied.
func wantEnded(wants []StepWant, wait string, satisfied bool) []StepWant {
	n := slices.IndexFunc(wants, func(w StepWant) bool { return w.Wait == wait })
	if n < 0 {
		return wants
	}
	wants = slices.Clone(wants)
	if satisfied {
		wants[n].Due = true
		return wants
	}
	return slices.Delete(wants, n, n+1)
}

// dueTaken leaves the steps that still wait.
func dueTaken(wants []StepWant) (left []StepWant) {
	for _, w := range wants {
		if !w.Due {
			left = append(left, w)
		}
	}
	return left
}

// StepAdmitted records that a step of the holder takes slots of its limits. If it has slots already, only the
// number of the try is new.
type StepAdmitted struct {
	Epoch int64
	Slot  StepSlot
}

func (e StepAdmitted) presents() int64 { return e.Epoch }

func (e StepAdmitted) apply(p *Policy, r *Run, now Instant, log *history) {
	hear(p, r, now, log)
	l := Limited{}
	if r.Limited != nil {
		l = *r.Limited
	}
	l.Steps = append(slices.DeleteFunc(slices.Clone(l.Steps), func(s StepSlot) bool { return s.Step == e.Slot.Step }),
		e.Slot)
	r.Limited = &l
}

// StepsLeft records that steps give their slots back: they are recorded, or given up.
type StepsLeft struct {
	Epoch int64
	Steps []string
}

func (e StepsLeft) presents() int64 { return e.Epoch }

func (e StepsLeft) allowed(_ *Policy, r *Run, _ Instant) bool { return r.Limited != nil }

func (e StepsLeft) apply(_ *Policy, r *Run, _ Instant, _ *history) {
	steps := slices.DeleteFunc(slices.Clone(r.Limited.Steps), func(s StepSlot) bool {
		return slices.Contains(e.Steps, s.Step)
	})
	r.Limited = held(r.Limited.Refs, steps)
}
